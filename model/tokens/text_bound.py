"""How few tokens a text can have, by its length: so one that has too many for a context is known without being encoded.

Nothing is known where an encoder may leave more of a text out than bytes that are no tokens: where special tokens take
the blanks beside them, or words are dropped. Source: the states of the tokenizers library's parts, which tokenizer.json
writes too.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from model.tokens.vocabulary import SPACE, Vocabulary

_NFC_FACTOR = 9
"""A character's canonical decomposition has a third of its bytes or more (U+212A), and three times as many or fewer
(U+0390; Unicode Standard Annex 15, section 12)."""
_KEEPING = frozenset({"Sequence", "ByteLevel", "Metaspace", "Digits", "Split"})


@dataclass(frozen=True, slots=True)
class TextBound:
    """What is known of an encoder."""

    max_bytes: int
    """Of the text that one token stands for."""
    silent: bytes
    """Bytes that are no tokens, and may be left out."""

    def fewest_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least."""
        return len(text.encode("utf-8", "replace").translate(None, self.silent)) // self.max_bytes


def text_bound(vocabulary: Vocabulary) -> TextBound | None:
    """Return what is known of a vocabulary's encoder; None where that is nothing."""
    encoder = vocabulary.encoder
    if any(token.lstrip or token.rstrip for token in encoder.get_added_tokens_decoder().values()):
        return None
    if not all(_keeps_text(part) for part in _parts(encoder.pre_tokenizer, "pretokenizers")):
        return None
    factor = 1
    for part in _parts(encoder.normalizer, "normalizers"):
        if part["type"] == "NFC":
            factor *= _NFC_FACTOR
        elif part["type"] not in ("Sequence", "Prepend") and not _spells_spaces(part):
            return None
    known = {piece for piece in vocabulary.pieces if len(piece) == 1}
    silent = bytes(byte for byte in range(256) if bytes([byte]) not in known)
    return TextBound(factor * max(map(len, vocabulary.pieces), default=1), silent)


def _parts(part: Normalizer | PreTokenizer | None, children: str) -> Iterator[Mapping[str, object]]:
    """Yield the state of a part, and of what it is made of."""
    if part is None:
        return
    written = part.__getstate__()
    assert isinstance(written, bytes)
    states = [json.loads(written)]
    for state in states:
        yield state
        states += state.get(children, [])


def _keeps_text(pre_tokenizer: Mapping[str, object]) -> bool:
    return pre_tokenizer["type"] in _KEEPING and pre_tokenizer.get("behavior") != "Removed"


def _spells_spaces(normalizer: Mapping[str, object]) -> bool:
    is_replacement = normalizer["type"] == "Replace" and normalizer.get("pattern") == {"String": " "}
    return is_replacement and normalizer.get("content") == SPACE
