"""Build a vocabulary from a GGUF file's metadata: byte-level BPE ("gpt2") and SentencePiece's BPE ("llama").

GGUF holds the tokens and their kinds, with merges (gpt2) or scores (llama), and says the rest in a few flags; what it
leaves unsaid is what llama.cpp assumes (src/llama-vocab.cpp). Sources: the GGUF specification; Kudo and Richardson,
"SentencePiece", arXiv 1808.06226; Sennrich et al., arXiv 1508.07909.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Tokenizer, models, normalizers

from model.checkpoint.fields import Fields
from model.tokens.end_of_generation import end_of_generation_ids
from model.tokens.infill import fim_tokens
from model.tokens.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from model.tokens.vocabulary import SPACE, Vocabulary, byte_level_piece, sentencepiece_piece


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_FIM_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "padding": ("fim_pad_token_id",),
    "repository": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}
"""Of each role its name, and the one that older files have."""
_FIM_ENDS = ("padding", "repository", "separator")
"""A model that fills in has left its file when it writes one of these."""
_CONTROL = (TokenKind.CONTROL, TokenKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens as the file spells them."""

    texts: list[str]
    kinds: list[TokenKind]
    ids: Mapping[str, int]

    def pieces(self, spelling: Callable[[str], bytes]) -> tuple[bytes, ...]:
        return tuple(_piece(text, kind, spelling) for text, kind in zip(self.texts, self.kinds, strict=True))

    def of_kinds(self, *kinds: TokenKind) -> dict[str, int]:
        return {text: token_id for text, token_id in self.ids.items() if self.kinds[token_id] in kinds}


def vocabulary_from_gguf(metadata: Mapping[str, object], source: str) -> Vocabulary:
    """Return the vocabulary of a GGUF file; `source` names the file in errors.

    Raises CheckpointError naming the key, where the tokenizer is of another kind, incomplete or contradicts itself.
    """
    fields = Fields(metadata, source, "tokenizer.ggml.")
    model = fields.text("model")
    if model not in ("gpt2", "llama"):
        raise fields.error("model", "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are supported")
    tokens = _read_tokens(fields)
    if model == "gpt2":
        pre_tokenizer = _pre_tokenizer(fields)
        encoder, spelling = _byte_level_encoder(fields, tokens, pre_tokenizer), byte_level_piece
        special = _special_ids(fields, tokens, bos=None, eos=None, unknown=None)
        adds_bos = fields.flag("add_bos_token", pre_tokenizer.adds_bos)
    else:
        special = _special_ids(fields, tokens, bos=1, eos=2, unknown=0)
        encoder, spelling = _sentencepiece_encoder(fields, tokens, special["unk_token"]), sentencepiece_piece
        adds_bos = fields.flag("add_bos_token", True)
    if adds_bos and special["bos_token"] is None:
        raise fields.error("bos_token_id", "add_bos_token is true, so it is needed")
    adds_eos = fields.flag("add_eos_token", False)
    if adds_eos and special["eos_token"] is None:
        raise fields.error("eos_token_id", "add_eos_token is true, so it is needed")
    added, control = tokens.of_kinds(*_CONTROL, TokenKind.USER_DEFINED), tokens.of_kinds(*_CONTROL)
    encoder.add_tokens(
        [AddedToken(text, special=tokens.kinds[i] in _CONTROL, normalized=False) for text, i in added.items()]
    )
    templates = Fields(metadata, source, "tokenizer.")
    fim = _fim_ids(fields, tokens)
    return Vocabulary(
        encoder=encoder,
        pieces=tokens.pieces(spelling),
        control_ids=frozenset(control.values()),
        bos_id=special["bos_token"],
        eos_id=special["eos_token"],
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        eog_ids=end_of_generation_ids(
            added, control.values(), [special["eos_token"], *(fim[role] for role in _FIM_ENDS)]
        ),
        special_tokens={role: tokens.texts[i] for role, i in special.items() if i is not None},
        chat_template=templates.text("chat_template", "") or None,
        tool_use_template=templates.text("chat_template.tool_use", "") or None,
        fim=fim_tokens(tokens.ids, fim),
    )


def _read_tokens(fields: Fields) -> _Tokens:
    texts = fields.get("tokens")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise fields.error("tokens", "an array of strings is needed")
    kinds = fields.get("token_type")
    if kinds is None:
        kinds = [TokenKind.NORMAL] * len(texts)
    if not isinstance(kinds, list) or len(kinds) != len(texts):
        raise fields.error("token_type", f"{len(texts)} numbers are needed, one for each token")
    known = {kind.value: kind for kind in TokenKind}
    ids: dict[str, int] = {}
    for token_id, text in enumerate(texts):
        if text and ids.setdefault(text, token_id) != token_id:
            raise fields.error("tokens", f"token {token_id} and token {ids[text]} are both {text!r}")
    return _Tokens(texts, [known.get(kind, TokenKind.UNUSED) for kind in kinds], ids)


def _piece(text: str, kind: TokenKind, spelling: Callable[[str], bytes]) -> bytes:
    match kind:
        case TokenKind.NORMAL | TokenKind.BYTE:
            return spelling(text)
        case TokenKind.UNUSED:
            return b""
        case _:
            return text.encode()


def _special_ids(
    fields: Fields, tokens: _Tokens, *, bos: int | None, eos: int | None, unknown: int | None
) -> dict[str, int | None]:
    """Return the ids of the tokens with a role, by the names that chat templates have for them."""
    defaults = {"bos": bos, "eos": eos, "unknown": unknown, "padding": None}
    ids: dict[str, int | None] = {}
    for role, default in defaults.items():
        token_id = fields.get(f"{role}_token_id")
        if token_id is None and default is not None and default < len(tokens.texts):
            token_id = default
        if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < len(tokens.texts)):
            raise fields.error(f"{role}_token_id", f"a token id from 0 to {len(tokens.texts) - 1} is needed")
        ids[{"unknown": "unk", "padding": "pad"}.get(role, role) + "_token"] = token_id
    return ids


def _fim_ids(fields: Fields, tokens: _Tokens) -> dict[str, int | None]:
    """Return the ids of tokens for filling in the middle that the file names, by role."""
    ids: dict[str, int | None] = {}
    for role, names in _FIM_KEYS.items():
        present = [name for name in names if name in fields]
        last = len(tokens.texts) - 1
        ids[role] = fields.integer(present[0], minimum=0, maximum=last) if present else None
    return ids


def _pre_tokenizer(fields: Fields) -> PreTokenizer:
    name = fields.text("pre", "default")
    if name not in PRE_TOKENIZERS:
        raise fields.error("pre", f"this way to cut words is not known here; known are {', '.join(PRE_TOKENIZERS)}")
    return PRE_TOKENIZERS[name]


def _byte_level_encoder(fields: Fields, tokens: _Tokens, pre_tokenizer: PreTokenizer) -> Tokenizer:
    merges = fields.get("merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise fields.error("merges", "an array of strings is needed")
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in tokens.ids and right in tokens.ids and left + right in tokens.ids):
            raise fields.error("merges", f"merge {len(pairs)} is {merge!r}: two tokens that make a third are needed")
        pairs.append((left, right))
    encoder = Tokenizer(models.BPE(vocab=dict(tokens.ids), merges=pairs, ignore_merges=pre_tokenizer.ignore_merges))
    if pre_tokenizer.normalizer is not None:
        encoder.normalizer = pre_tokenizer.normalizer()
    encoder.pre_tokenizer = pre_tokenizer.build()
    return encoder


def _sentencepiece_encoder(fields: Fields, tokens: _Tokens, unknown_id: int | None) -> Tokenizer:
    fields.refuse_unless({"remove_extra_whitespaces": (False,)})
    encoder = Tokenizer(
        models.BPE(
            vocab=dict(tokens.ids),
            merges=_merges_by_score(fields, tokens),
            unk_token=None if unknown_id is None else tokens.texts[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    if fields.flag("add_space_prefix", True):  # before each stretch of text between special tokens
        encoder.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    else:
        encoder.normalizer = spaces
    return encoder


def _merges_by_score(fields: Fields, tokens: _Tokens) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece would make: of neighbours that make a token, the one with the highest score.

    A list of merges is an order, so the pairs that make one token stand together, by their own ids.
    """
    scores = fields.get("scores")
    are_numbers = isinstance(scores, list) and all(isinstance(x, int | float) and not math.isnan(x) for x in scores)
    if not isinstance(scores, list) or len(scores) != len(tokens.texts) or not are_numbers:
        raise fields.error("scores", f"{len(tokens.texts)} numbers are needed, one for each token")
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for text, token_id in tokens.of_kinds(TokenKind.NORMAL).items():
        for split in range(1, len(text)):
            left, right = text[:split], text[split:]
            if left in tokens.ids and right in tokens.ids:
                rank = (-scores[token_id], token_id, tokens.ids[left], tokens.ids[right])
                ranked.append((*rank, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]
