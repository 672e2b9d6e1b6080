"""What a checkpoint says about its tokens, in one form for every kind of file, and how files spell tokens.

A token's *piece* is the bytes that it stands for. Files spell pieces as text in one of two ways: byte-level BPE writes
each byte as one printable character (GPT-2's table), SentencePiece writes a space as ▁ and a byte without a token of
its own as <0xXX>. Special tokens stand for their own text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers

from model.tokens.infill import NO_FIM, FimTokens

SPACE = "▁"
"""SentencePiece's spelling of a space, U+2581."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """A checkpoint's tokens. Ids are positions in `pieces`; ids that the file leaves out have the empty piece."""

    encoder: tokenizers.Tokenizer
    """Splits text into ids, without adding any at its ends."""
    pieces: tuple[bytes, ...]
    control_ids: frozenset[int]
    """Tokens with a role instead of a text: BOS, the marks of a chat turn, …"""
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    """The model was trained on texts that begin with BOS, and the template or the caller does not write it."""
    adds_eos: bool
    """The same of EOS at their end, as of models that embed them."""
    eog_ids: frozenset[int]
    special_tokens: Mapping[str, str]
    """The texts that a chat template may name: bos_token, eos_token, …"""
    chat_template: str | None
    tool_use_template: str | None
    fim: FimTokens = NO_FIM
    """The tokens for filling in the middle."""


def _byte_level_table() -> dict[int, int]:
    """GPT-2's table, from character to byte: printable Latin-1 is itself, the others are counted from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + n: byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_level_table()
_BYTE_LEVEL = frozenset(map(chr, _BYTE_OF))


def byte_level_piece(text: str) -> bytes:
    """Return what a token of byte-level BPE stands for; text outside its alphabet stands for itself."""
    if _BYTE_LEVEL.issuperset(text):
        return text.translate(_BYTE_OF).encode("latin-1")
    return text.encode()


def sentencepiece_piece(text: str) -> bytes:
    """Return what a token of SentencePiece stands for."""
    if _BYTE.fullmatch(text):
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()
