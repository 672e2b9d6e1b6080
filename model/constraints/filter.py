"""Which tokens one request may generate next, as far as it has come.

The mask of the next token is computed as soon as the last one is known, on a thread beside, while the scheduler
plans and the model runs. It is a function of the tokens alone, so a request that was preempted, paused or computed
again goes on where it was.
"""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field

from llguidance import LLMatcher

from model.constraints.triggers import FreeText, TriggerSearch
from model.constraints.vocabulary import ConstraintFailed, TokenVocabulary

_SLOW_S = 0.02
Allowed = tuple[bytes, bool]
"""One byte for each token of the vocabulary, 0 where it is forbidden; and whether the text may end."""


@dataclass(frozen=True, slots=True)
class MaskThreads:
    """Where masks are computed, beside the steps that need them. A request whose last mask took long has its next one
    on a thread with its like, so that no other waits for it."""

    usual: Executor
    slow: Executor
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A constraint at its beginning, for one vocabulary. Raises ConstraintFailed where it allows nothing."""

    matcher: LLMatcher
    """Nobody advances it."""
    vocabulary: TokenVocabulary
    preserved: frozenset[int]
    search: TriggerSearch | None
    """Of what ends free text; None where the constraint holds from the first token on."""
    first: Allowed = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.allowed(self.matcher.deep_copy()))
        if self.search is not None:
            object.__setattr__(self, "first", (self.search.allowed(b""), True))

    def allowed(self, matcher: LLMatcher) -> Allowed:
        """Return what may come after what `matcher` was fed. Raises ConstraintFailed, also where that is nothing."""
        mask, can_end = self.vocabulary.allowed(matcher, self.preserved)
        if not can_end and not any(mask):
            raise ConstraintFailed("the constraint allows no token of the vocabulary")
        return mask, can_end


class ConstraintFilter:
    """The state of one request. One thread at a time calls it."""

    def __init__(self, compiled: CompiledConstraint, threads: MaskThreads, end_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._threads = threads
        self._is_slow = False
        self._end_ids = end_ids.union(compiled.vocabulary.eog_ids)
        self._own_end_ids = end_ids.difference(compiled.vocabulary.eog_ids)
        self._matcher = compiled.matcher.deep_copy() if compiled.search is None else None
        """None in free text."""
        self._free = None if compiled.search is None else FreeText(compiled.search)
        self._next: Future[Allowed] | None = None

    def is_ready(self, wait_s: float) -> bool:
        """Whether the mask of the next token is there now, or within `wait_s` seconds."""
        return self._next is None or bool(wait([self._next], wait_s).done)

    def allowed(self) -> bytes:
        """Return one byte for each token of the vocabulary, 0 where it may not come next. Raises ConstraintFailed."""
        mask, can_end = self._result()
        if not can_end or not self._own_end_ids:
            return mask
        ended = bytearray(mask)
        for token_id in self._own_end_ids:
            ended[token_id] = 1
        return bytes(ended)

    def can_end(self) -> bool:
        """Return whether the text may end here. Raises ConstraintFailed."""
        return self._result()[1]

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen among those allowed."""
        if token_id not in self._end_ids:  # nothing follows those
            executor = self._threads.slow if self._is_slow else self._threads.usual
            self._next = executor.submit(self._advance, token_id)

    def _result(self) -> Allowed:
        return self._compiled.first if self._next is None else self._next.result()

    def _advance(self, token_id: int) -> Allowed:
        begun_s = self._threads.clock()
        try:
            return self._allowed_after(token_id)
        finally:
            self._is_slow = self._threads.clock() - begun_s > _SLOW_S

    def _allowed_after(self, token_id: int) -> Allowed:
        compiled = self._compiled
        if self._matcher is not None:
            compiled.vocabulary.feed(self._matcher, token_id, compiled.preserved)
            return compiled.allowed(self._matcher)
        assert self._free is not None
        self._matcher = self._free.advance(token_id)
        if self._matcher is not None:
            return compiled.allowed(self._matcher)
        return self._free.allowed(), True
