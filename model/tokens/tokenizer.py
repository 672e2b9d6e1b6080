"""Text to tokens and back, whatever kind of file the tokenizer comes from. It must not know of requests or of HTTP.

`encode` and `decode` mean what they mean in llama.cpp: the text of a sequence is its pieces joined, so a SentencePiece
model's text begins with the space that the model was trained to see there.
"""

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from tokenizers import Tokenizer as Encoder

from model.checkpoint.config import CheckpointError
from model.checkpoint.weights import Checkpoint
from model.tokens.chat_template import ChatTemplate
from model.tokens.text_bound import text_bound
from model.tokens.tokenizer_gguf import vocabulary_from_gguf
from model.tokens.tokenizer_hf import vocabulary_from_directory
from model.tokens.vocabulary import Vocabulary

_LONG_TEXT = 2048
"""Characters from which other threads go on while a text is encoded."""


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    `vocab_size` is the model's: every id below it is valid, and those that the tokenizer does not know (rows that only
    fill the embedding) have the empty piece. Raises CheckpointError where a token has no row in the embedding, and
    TemplateError where the chat template does not compile.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eog_ids: Iterable[int] = ()) -> None:
        num_tokens = len(vocabulary.pieces)
        if num_tokens > vocab_size:
            last = vocabulary.pieces[-1].decode("utf-8", "replace")
            raise CheckpointError(
                f"the tokenizer has {num_tokens} tokens, the model's embedding {vocab_size} rows; tokens beyond them "
                f"(the last is {last!r}) must be removed from the tokenizer, or the embedding must be enlarged"
            )
        self.vocabulary = vocabulary
        self.vocab_size = vocab_size
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.adds_bos = vocabulary.adds_bos
        self.eog_ids = vocabulary.eog_ids | frozenset(eog_ids)
        self.bos_text = vocabulary.special_tokens.get("bos_token", "")
        self.eos_text = vocabulary.special_tokens.get("eos_token", "")
        self.chat_template: ChatTemplate | None = None
        if vocabulary.chat_template is not None:
            self.chat_template = ChatTemplate(
                vocabulary.chat_template,
                special_tokens=vocabulary.special_tokens,
                tool_use_source=vocabulary.tool_use_template,
            )
        self._text_bound = text_bound(vocabulary)
        self._control_ids = vocabulary.control_ids | self.eog_ids
        # Whether special tokens are parsed is a state of an encoder, which must not change under another thread.
        self._encoders = {True: vocabulary.encoder, False: _unparsing(vocabulary.encoder)}

    def enlarged(self, vocab_size: int) -> "Tokenizer":
        """Return the same tokenizer for a vocabulary that is as large or larger: its new ids have the empty piece."""
        assert vocab_size >= self.vocab_size
        other = copy.copy(self)
        other.vocab_size = vocab_size
        return other

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Return the tokens of a text.

        `add_special` does as `with_special` at both ends. Without `parse_special` the text of a special token is text
        like any other. Lone surrogates, which are no characters, become U+FFFD.
        """
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        encoder = self._encoders[parse_special]
        if len(text) < _LONG_TEXT:
            ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        else:  # `encode` keeps the interpreter's lock
            [encoding] = encoder.encode_batch_fast([text], add_special_tokens=False)
            ids = encoding.ids
        return self.with_special(ids, at_start=True, at_end=True) if add_special else ids

    def with_special(self, ids: list[int], *, at_start: bool, at_end: bool) -> list[int]:
        """Return tokens with BOS in front and EOS behind, where the model adds them, unless they are there already
        (chat templates write them)."""
        vocabulary = self.vocabulary
        if at_start and vocabulary.adds_bos and ids[:1] != [vocabulary.bos_id]:
            assert vocabulary.bos_id is not None
            ids = [vocabulary.bos_id, *ids]
        if at_end and vocabulary.adds_eos and ids[-1:] != [vocabulary.eos_id]:
            assert vocabulary.eos_id is not None
            ids = [*ids, vocabulary.eos_id]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, special ones included; bytes that are not UTF-8 become U+FFFD.

        Raises ValueError for an id outside the vocabulary.
        """
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, a special one's text. Raises ValueError for an id outside."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token {token_id} is outside the vocabulary of {self.vocab_size}")
        pieces = self.vocabulary.pieces
        return pieces[token_id] if token_id < len(pieces) else b""

    def fewest_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least, without encoding it: far below the truth, and 0 where
        nothing is known."""
        return 0 if self._text_bound is None else self._text_bound.fewest_tokens(text)

    @cached_property
    def digest(self) -> str:
        """The hash of what tokens stand for. Tokenizers with one digest give the same text for the same tokens."""
        content = repr((self.vocabulary.pieces, sorted(self._control_ids)))
        return hashlib.sha256(content.encode()).hexdigest()

    def is_control(self, token_id: int) -> bool:
        """Whether the token has a role instead of a text, or ends generation: generated content does not show it."""
        return token_id in self._control_ids


def _unparsing(encoder: Encoder) -> Encoder:
    """Return an encoder for which the text of special tokens is text like any other, and which shares all else."""
    added = encoder.get_added_tokens_decoder()
    other = Encoder(encoder.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(encoder, part) is not None:
            setattr(other, part, getattr(encoder, part))
    other.add_tokens([added[token_id] for token_id in sorted(added)])
    if other.get_added_tokens_decoder() != added:  # their ids have gaps
        other = Encoder.from_str(encoder.to_str())
    other.encode_special_tokens = True
    return other


def load_tokenizer(checkpoint: Checkpoint, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer that comes with a checkpoint; `chat_template` replaces the checkpoint's own.

    Raises CheckpointError naming the file and the field, where it is missing, damaged or of a kind that is not
    supported, and TemplateError where its chat template does not compile.
    """
    if checkpoint.gguf is not None:
        vocabulary = vocabulary_from_gguf(checkpoint.gguf, str(checkpoint.path))
    else:
        vocabulary = vocabulary_from_directory(checkpoint.path)
    if chat_template is not None:
        vocabulary = replace(vocabulary, chat_template=chat_template, tool_use_template=None)
    return Tokenizer(vocabulary, checkpoint.config.vocab_size, checkpoint.eog_ids)
