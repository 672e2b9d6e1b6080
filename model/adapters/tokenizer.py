"""The tokenizer that a PEFT directory ships beside its adapter: which of it is honoured, and what is refused.

Trainers save the tokenizer they used. Where it is the base model's there is nothing to do. Where it is not, requests
that use the adapter get it: its added tokens, its way to split text, its chat template, and its end of a turn. On every
token of the base model it must agree with the base model's tokenizer, for those rows of the embedding stay what they
are; tokens are compared by what they stand for, so that a GGUF file and a Hugging Face directory can be compared.

What ends generation: all that ends the base model's, the adapter's own `eos_token` (new or not), and those of its added
tokens that are known ends (tokens/end_of_generation.py).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from weakref import WeakValueDictionary

from tokenizers import Tokenizer as Encoder

from model.adapters.tensors import AdapterError
from model.checkpoint.config import CheckpointError
from model.tokens.chat_template import ChatTemplate, TemplateError
from model.tokens.tokenizer import Tokenizer
from model.tokens.tokenizer_hf import vocabulary_from_directory
from model.tokens.vocabulary import SPACE, Vocabulary

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""Any of these makes a directory one that ships a tokenizer."""
_ALSO_READ = "additional_chat_templates/tool_use.jinja"
_MAX_REMEMBERED = 1024


@dataclass(frozen=True, slots=True, weakref_slot=True)
class AdapterTokenizer:
    """What requests get that use the adapter."""

    tokenizer: Tokenizer
    added: Mapping[int, str]
    """Tokens that the base model's tokenizer does not have."""
    chat_template: ChatTemplate | None
    """The one to use: given by the operator, else the adapter's own, else the base model's."""


class AdapterTokenizers:
    """Reads the tokenizers of one base model's adapters.

    Adapters of one training set-up ship the same files. They are read once and shared, which for a large vocabulary
    saves a second and tens of megabytes for each adapter.
    """

    def __init__(self, base: Tokenizer, chat_template: str | None = None) -> None:
        """`chat_template` is the source of the operator's template, which wins over everybody's."""
        self._base = base
        self._chat_template = chat_template
        self._shared: WeakValueDictionary[tuple[str, int], AdapterTokenizer] = WeakValueDictionary()
        self._base_models: dict[tuple[str, int], None] = {}
        """Files that turned out to be the base model's."""

    def read(self, directory: Path, vocab_size: int) -> AdapterTokenizer | None:
        """Return what `read_adapter_tokenizer` does. Works on any thread."""
        files = _digest(directory)
        if files is None or (files, vocab_size) in self._base_models:
            return None
        found = self._shared.get((files, vocab_size))
        if found is None:
            found = read_adapter_tokenizer(directory, self._base, vocab_size, self._chat_template)
            if found is not None:
                self._shared[files, vocab_size] = found
            elif len(self._base_models) < _MAX_REMEMBERED:
                self._base_models[files, vocab_size] = None
        return found


def _digest(directory: Path) -> str | None:
    """Return the hash of the files that a tokenizer is made of; None where there are none."""
    content = hashlib.sha256()
    present = [name for name in (*FILES, _ALSO_READ) if (directory / name).is_file()]
    for name in present:
        text = (directory / name).read_bytes()
        content.update(b"%s %d " % (name.encode(), len(text)) + text)
    return content.hexdigest() if present else None


def read_adapter_tokenizer(
    directory: Path, base: Tokenizer, vocab_size: int, chat_template: str | None = None
) -> AdapterTokenizer | None:
    """Return the tokenizer that `directory` ships; None where it ships none, or the base model's.

    `vocab_size` is that of requests that use the adapter: the base model's, or what the adapter's rows extend it to.
    `chat_template` is the source of the operator's template, which wins over everybody's. Raises AdapterError naming
    the file and the token or field.
    """
    if not any((directory / name).is_file() for name in FILES):
        return None
    try:
        read = vocabulary_from_directory(directory, base.vocabulary)
        added = _added_tokens(read, base, directory)
        vocabulary = _with_rows(read, added, base, vocab_size, directory)
        if chat_template is not None:
            vocabulary = replace(vocabulary, chat_template=chat_template, tool_use_template=None)
        tokenizer = Tokenizer(vocabulary, vocab_size, base.eog_ids)
    except (CheckpointError, TemplateError, UnicodeError, RecursionError) as error:
        raise AdapterError(f"the adapter's tokenizer: {error}") from error
    if _is_same(tokenizer, base):
        return None
    return AdapterTokenizer(tokenizer, added, tokenizer.chat_template)


def tokenizer_of_list(
    base: AdapterTokenizer, named: Sequence[tuple[str, AdapterTokenizer]], vocab_size: int
) -> AdapterTokenizer:
    """Return what requests get under a list: `named` are its adapters that ship a tokenizer, with their names, `base`
    is the base model's, `vocab_size` the list's.

    It is the one whose added tokens include all the others'. Its chat template counts where all agree on one, else the
    base model's does. Raises AdapterError naming two adapters of which each adds a token that the other has not.
    """
    name, widest = max(named, key=lambda each: len(each[1].added), default=("", base))
    for other_name, other in named:
        for token_id, text in other.added.items():
            if widest.added.get(token_id) != text:
                raise AdapterError(
                    f"adapters {name!r} and {other_name!r} cannot be mixed: each adds tokens to the tokenizer that the "
                    f"other does not have, as token {token_id} {text!r} of {other_name!r}"
                )
    sources = {None if each.chat_template is None else each.chat_template.source for _, each in named}
    template = widest.chat_template if len(sources) <= 1 else base.chat_template
    return AdapterTokenizer(widest.tokenizer.enlarged(vocab_size), widest.added, template)


def _added_tokens(read: Vocabulary, base: Tokenizer, directory: Path) -> dict[int, str]:
    """Return the tokens that the base model's tokenizer does not have. Raises AdapterError unless all others agree."""
    added = {}
    for token_id, (own, known) in enumerate(zip_longest(read.pieces, base.vocabulary.pieces, fillvalue=b"")):
        if not known:  # a row that only fills the embedding, or none
            if own:
                added[token_id] = own.decode("utf-8", "replace")
        elif _plain(own) != _plain(known):
            own_text, known_text = own.decode("utf-8", "replace"), known.decode("utf-8", "replace")
            raise AdapterError(
                f"{directory}: token {token_id} of the adapter's tokenizer is {own_text!r}, the base model's is "
                f"{known_text!r}: is the adapter for another model? Without the tokenizer's files in its directory the "
                "adapter is used with the base model's tokenizer"
            )
    return added


def _plain(piece: bytes) -> bytes:
    """Added tokens are written with ▁ in some files and with a space in others."""
    return piece.replace(SPACE.encode(), b" ")


def _with_rows(
    read: Vocabulary, added: dict[int, str], base: Tokenizer, vocab_size: int, directory: Path
) -> Vocabulary:
    """Return the vocabulary of the tokens that have a row, with the base model's own left as the base model has them.

    Takes out of `added` the token for padding, where it has no row: padding is never computed. Raises AdapterError for
    another one.
    """
    encoder = read.encoder
    for token_id in [i for i in added if i >= vocab_size]:
        text = added.pop(token_id)
        if text != read.special_tokens.get("pad_token"):
            raise AdapterError(
                f"{directory}: token {token_id} {text!r} of the adapter's tokenizer has no row: the base model has "
                f"{base.vocab_size}, with the adapter's there are {vocab_size}; save the adapter with its embedding "
                "(modules_to_save or trainable_token_indices), or the tokenizer without the token"
            )
        encoder = _without(encoder, token_id)
    known = dict(enumerate(base.vocabulary.pieces))
    pieces = known | {token_id: text.encode() for token_id, text in added.items()}
    has_template = read.chat_template is not None
    return replace(
        read,
        encoder=encoder,
        pieces=tuple(pieces.get(i, b"") for i in range(max(pieces) + 1)),
        control_ids=base.vocabulary.control_ids | (read.control_ids & added.keys()),
        eog_ids=frozenset(i for i in read.eog_ids if i in added or i == read.eos_id),
        chat_template=read.chat_template if has_template else base.vocabulary.chat_template,
        tool_use_template=read.tool_use_template if has_template else base.vocabulary.tool_use_template,
    )


def _without(encoder: Encoder, token_id: int) -> Encoder:
    copy = json.loads(encoder.to_str())
    copy["added_tokens"] = [token for token in copy["added_tokens"] if token["id"] != token_id]
    return Encoder.from_str(json.dumps(copy))


def _is_same(tokenizer: Tokenizer, base: Tokenizer) -> bool:
    """Whether requests get from both the same tokens, texts, prompts of a conversation and ends."""
    own, other = tokenizer.vocabulary, base.vocabulary
    return (
        tokenizer.vocab_size == base.vocab_size
        and own.pieces == other.pieces
        and tokenizer.eog_ids == base.eog_ids
        and (own.bos_id, own.eos_id) == (other.bos_id, other.eos_id)
        and (own.adds_bos, own.adds_eos) == (other.adds_bos, other.adds_eos)
        and (own.chat_template, own.tool_use_template) == (other.chat_template, other.tool_use_template)
        and own.encoder.to_str() == other.encoder.to_str()
    )
