"""Where a lazy constraint begins to hold: text is free until a trigger, which is the constraint's first word or token.

The constraint is fed the text from the trigger's beginning on, so it must begin with its triggers. A token may hold a
whole trigger and more, or the rest of one and more: where the constraint refuses what follows, the token is forbidden.
Of patterns that cannot be told in time, for each token of the vocabulary would have to be tried: where one ends free
text with what the constraint refuses, the request fails. Source: llama.cpp's lazy grammars.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llguidance import LLMatcher

from model.bounded_regex import RegexError
from model.constraints.trigger_pattern import MAX_STEPS, TriggerPattern
from model.constraints.vocabulary import ConstraintFailed, TokenVocabulary

_MAX_REMEMBERED = 4096


class TriggerError(ValueError):
    """A trigger with which the constraint cannot begin."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """What ends free text; at least one."""

    words: tuple[str, ...] = ()
    """None is empty."""
    token_ids: tuple[int, ...] = ()
    patterns: tuple["Pattern", ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that ends free text when it matches. The constraint is fed from its first group on that is
    not empty, or else from where the match begins."""

    regex: str
    is_whole: bool = False
    """It must match all text so far."""


class TriggerSearch:
    """Looks for the triggers of one compiled constraint.

    All it needs to know of a text is its longest end that begins a word: its *tail*.
    """

    def __init__(
        self, triggers: Triggers, vocabulary: TokenVocabulary, matcher: LLMatcher, preserved: frozenset[int]
    ) -> None:
        """`matcher` stands at the constraint's beginning, and stays there. Raises TriggerError."""
        self.patterns = _compiled(triggers.patterns)
        self._words = [word.encode() for word in triggers.words]
        self._token_ids = frozenset(triggers.token_ids)
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._preserved = preserved
        self._accepted: dict[bytes, bool] = {}
        self._masks: dict[bytes, bytes] = {}
        for word in self._words:
            if not self._accepts(word):
                raise TriggerError(f"cannot begin with the trigger {word.decode()[:200]!r}")
        for token_id in triggers.token_ids:
            if not self._accepts_token(token_id):
                raise TriggerError(f"cannot begin with the trigger, token {token_id}")

    def allowed(self, tail: bytes) -> bytes:
        """Return one byte for each token, 0 where it would begin the constraint with what that refuses."""
        if tail not in self._masks:
            mask = bytearray(b"\1" * self._vocabulary.size)
            for token_id in self._candidates(tail):
                if token_id not in self._token_ids:
                    fed = self._beginning(tail + self.text_of(token_id))
                    mask[token_id] = fed is None or self._accepts(fed)
            self._masks[tail] = bytes(mask)
        return self._masks[tail]

    def advance(self, tail: bytes, token_id: int) -> tuple[bytes, LLMatcher | None]:
        """Return the tail after a token of free text, and the constraint after what it was fed where a word or a token
        has begun that."""
        if token_id in self._token_ids:
            matcher = self._matcher.deep_copy()
            self._vocabulary.feed(matcher, token_id, self._preserved)
            return b"", matcher
        text = tail + self.text_of(token_id)
        fed = self._beginning(text)
        return (self._tail(text), None) if fed is None else (b"", self._fed(fed))

    def begun(self, text: bytes) -> LLMatcher:
        """Return the constraint after the text with which a pattern has begun it. Raises ConstraintFailed."""
        if not self._accepts(text):
            raise ConstraintFailed(f"the constraint refuses {text.decode(errors='replace')[:200]!r}, where it begins")
        return self._fed(text)

    def text_of(self, token_id: int) -> bytes:
        """Return what a token adds to the text."""
        return self._vocabulary.text_of(token_id, self._preserved)

    def _fed(self, text: bytes) -> LLMatcher:
        matcher = self._matcher.deep_copy()
        matcher.consume_tokens(self._vocabulary.bytes_as_tokens(text))
        return matcher

    def _beginning(self, text: bytes) -> bytes | None:
        """Return `text` from the first trigger on."""
        starts = [start for word in self._words if (start := text.find(word)) >= 0]
        return text[min(starts) :] if starts else None

    def _tail(self, text: bytes) -> bytes:
        longest = max((len(word) for word in self._words), default=1) - 1
        for start in range(max(len(text) - longest, 0), len(text)):
            if any(word.startswith(text[start:]) for word in self._words):
                return text[start:]
        return b""

    def _candidates(self, tail: bytes) -> Iterator[int]:
        """Yield the tokens with which a word can be complete after `tail`."""
        for word in self._words:
            for token_id, piece in enumerate(self._vocabulary.pieces):
                if word in piece:
                    yield token_id
            for length in range(1, min(len(word) - 1, len(tail)) + 1):
                if tail.endswith(word[:length]):
                    yield from self._vocabulary.tokens_beginning_with(word[length:])

    def _accepts(self, text: bytes) -> bool:
        if text not in self._accepted:
            if len(self._accepted) >= _MAX_REMEMBERED:
                self._accepted.clear()
            tokens = self._vocabulary.bytes_as_tokens(text)
            self._accepted[text] = self._matcher.deep_copy().validate_tokens(tokens) == len(tokens)
        return self._accepted[text]

    def _accepts_token(self, token_id: int) -> bool:
        if token_id in self._preserved:
            return self._accepts(self._vocabulary.pieces[token_id])
        return self._matcher.deep_copy().validate_tokens([token_id]) == 1


def _compiled(patterns: Sequence[Pattern]) -> list[TriggerPattern]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(TriggerPattern(pattern.regex, is_whole=pattern.is_whole))
        except RegexError as error:
            raise TriggerError(f"has the trigger {pattern.regex[:200]!r}, which {error}") from None
    if sum(len(pattern.steps) for pattern in compiled) > MAX_STEPS:
        raise TriggerError(f"has triggers of more than {MAX_STEPS} steps together")
    return compiled


class FreeText:
    """The text of one request before the constraint holds."""

    def __init__(self, search: TriggerSearch) -> None:
        self._search = search
        self._tail = b""
        self._patterns = [pattern.search() for pattern in search.patterns]
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pieces: list[str] = []
        """All of it, where there are patterns."""

    def allowed(self) -> bytes:
        """Return one byte for each token, 0 where it would begin the constraint with what that refuses."""
        return self._search.allowed(self._tail)

    def advance(self, token_id: int) -> LLMatcher | None:
        """Take a token; return the constraint after what it was fed where that has begun. Raises ConstraintFailed."""
        self._tail, matcher = self._search.advance(self._tail, token_id)
        if matcher is not None or not self._patterns:
            return matcher
        text = self._decoder.decode(self._search.text_of(token_id))
        self._pieces.append(text)
        starts = [start for pattern in self._patterns if (start := pattern.push(text)) is not None]
        if not starts:
            return None
        begun = "".join(self._pieces)[starts[0] :].encode("utf-8", "surrogateescape")
        return self._search.begun(begun + self._decoder.getstate()[0])
