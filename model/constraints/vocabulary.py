"""A tokenizer's vocabulary as llguidance takes it, and which tokens one of its matchers allows. Knows no requests.

Pieces are given as bytes, whatever kind of file they come from. Control tokens have no text here: a grammar reaches
them by name or id alone, for what they stand for is not shown. Behind the vocabulary stand one token that only means
the end, and one for each byte, so that text can be fed that does not begin where a token does.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from model.constraints.check import SpecialTokens
from model.tokens.tokenizer import Tokenizer

_POSITION = re.compile(r"^at \d+\(\d+\): ")
_NOTHING_FOLLOWS = "NoExtensionBias"


class ConstraintFailed(Exception):
    """A constraint cannot say what may come next; says why."""


class TokenVocabulary:
    """The tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes tenths of a second for a large vocabulary."""
        self.size = tokenizer.vocab_size
        self.eog_ids = tuple(sorted(tokenizer.eog_ids))
        self._tokenizer = tokenizer
        self.pieces = tuple(map(tokenizer.piece, range(self.size)))
        self.control_ids = frozenset(filter(tokenizer.is_control, range(self.size)))
        self.lexer_tokens = LLTokenizer(
            TokenizerWrapper(_Tokens(self)), eos_token=[self.size], slices=LLTokenizer.json_slices()
        )

    def bytes_as_tokens(self, text: bytes) -> list[int]:
        """Return the tokens behind the vocabulary that stand for single bytes."""
        return [self.size + 1 + byte for byte in text]

    def token_named(self, text: str) -> int | None:
        """Return the one token whose text is `text`; None where there is none."""
        ids = self._tokenizer.encode(text)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The control tokens, which grammars name by their texts."""
        return [(token_id, self.pieces[token_id].decode(errors="replace")) for token_id in sorted(self.control_ids)]

    @cached_property
    def _by_piece(self) -> list[tuple[bytes, int]]:
        return sorted((piece, token_id) for token_id, piece in enumerate(self.pieces) if piece)

    def text_of(self, token_id: int, preserved: Collection[int]) -> bytes:
        """Return what a token adds to the text that is shown: control tokens have one only where they are preserved."""
        is_shown = token_id not in self.control_ids or token_id in preserved
        return self.pieces[token_id] if is_shown else b""

    def allowed(self, matcher: LLMatcher, preserved: Collection[int]) -> tuple[bytes, bool]:
        """Return one byte for each token, 0 where the matcher forbids it, and whether the text may end here.

        End tokens are allowed exactly where it may. `preserved` are control tokens that may come where their text may.
        Raises ConstraintFailed.
        """
        can_end = matcher.is_accepting()
        mask = bytearray(self.size) if matcher.is_stopped() else bytearray(matcher.compute_logit_bias()[: self.size])
        reason = engine_message(matcher.get_error())
        if reason not in ("", _NOTHING_FOLLOWS):
            raise ConstraintFailed(f"the constraint cannot go on: {reason}")
        for token_id in preserved:
            text = self.bytes_as_tokens(self.pieces[token_id])
            mask[token_id] |= bool(text) and matcher.validate_tokens(text) == len(text)
        for token_id in self.eog_ids:
            mask[token_id] = can_end
        return bytes(mask), can_end

    def feed(self, matcher: LLMatcher, token_id: int, preserved: Collection[int]) -> None:
        """Advance a matcher by a token that it allows."""
        if token_id in preserved:
            matcher.consume_tokens(self.bytes_as_tokens(self.pieces[token_id]))
        else:
            matcher.consume_token(token_id)

    def tokens_beginning_with(self, text: bytes) -> Iterator[int]:
        """Yield the tokens whose piece begins with `text`."""
        for index in range(bisect_left(self._by_piece, (text, -1)), len(self._by_piece)):
            piece, token_id = self._by_piece[index]
            if not piece.startswith(text):
                return
            yield token_id


class _Tokens:
    """What llguidance asks of a tokenizer. Grammars are compiled so that no text needs to be split into tokens."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.eos_token_id = vocabulary.size
        self.bos_token_id = None
        self.tokens = [*vocabulary.pieces, b"the end", *(bytes([byte]) for byte in range(256))]
        self.special_token_ids = [*sorted(vocabulary.control_ids), vocabulary.size]

    def __call__(self, text: bytes) -> list[int]:
        return []


def engine_message(message: str) -> str:
    """Return what one of llguidance's messages says: its first line, and of those that quote a regular expression the
    reason below it; not where in the rules that we wrote it stands, nor the state of the parser.
    """
    first, *more = message.strip().splitlines() or [""]
    reasons = [line.removeprefix("error: ") for line in more if line.startswith("error: ")]
    return " ".join([_POSITION.sub("", first), *reasons])
