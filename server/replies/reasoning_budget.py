"""A bound of how long a model thinks: after so many tokens of thinking the end tag is forced, token by token.

A filter of tokens like any other: a function of the tokens alone, which goes together with a constraint of the text. A
lazy one is not told of what the model thinks, so that it finds no trigger there.
Source: llama-server's `reasoning_budget_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from model.tokens.detokenizer import Detokenizer
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import TokenFilter
from server.replies.reasoning import ReasoningTags


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """How long the model may think, and how thinking is told from the rest."""

    num_tokens: int | None
    """None: as long as it likes."""
    tags: ReasoningTags
    is_begun: bool
    """Whether the prompt ends in the middle of thinking."""
    message: str = ""
    """Is forced before the end tag."""
    interrupts: tuple[str, ...] = ()
    """End thinking as well."""
    is_inner_blind: bool = False
    """Whether the constraint beside it is not told of thinking, in which anything may come."""

    def begin(self, tokenizer: Tokenizer, inner: TokenFilter | None) -> "BudgetFilter":
        """Return the filter of one request's tokens, which also keeps to `inner`."""
        return BudgetFilter(self, tokenizer, inner)


class _State(Enum):
    BEFORE = auto()
    """Nothing but white space, and perhaps the beginning of the start tag, has come."""
    THINKING = auto()
    FORCING = auto()
    OVER = auto()


class BudgetFilter:
    """The state of one request."""

    def __init__(self, budget: ReasoningBudget, tokenizer: Tokenizer, inner: TokenFilter | None) -> None:
        self._budget = budget
        self._inner = inner
        self._all = b"\1" * tokenizer.vocab_size
        self._detokenizer = Detokenizer(tokenizer, render_special=True)
        self._forced: Sequence[int] = tokenizer.encode(budget.message + budget.tags.end)
        self._num_forced = 0
        self._num_thought = 0
        self._text = ""
        """What has come, as far as it can be part of a tag."""
        self._state = _State.BEFORE
        if budget.is_begun:
            self._think()

    def is_ready(self, wait_s: float) -> bool:
        """Whether what may come next is known now, or within `wait_s` seconds."""
        inner = self._told
        return inner is None or inner.is_ready(wait_s)

    def allowed(self) -> bytes:
        """Return one byte for each token of the vocabulary, 0 where it may not come next."""
        inner = self._told
        mask = self._all if inner is None else inner.allowed()
        if self._state is not _State.FORCING or not mask[self._forced[self._num_forced]]:
            return mask  # a character of a thought is whole first
        forced = bytearray(len(self._all))
        forced[self._forced[self._num_forced]] = 1
        return bytes(forced)

    def can_end(self) -> bool:
        """Return whether the text may end here."""
        inner = self._told
        return self._state is not _State.FORCING and (inner is None or inner.can_end())

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen among those allowed."""
        inner = self._told
        if inner is not None:
            inner.accept(token_id)
        if self._state is _State.FORCING:
            self._num_forced += token_id == self._forced[self._num_forced]
            if self._num_forced == len(self._forced):
                self._state = _State.OVER
        elif self._state is not _State.OVER:
            self._text += self._detokenizer.push(token_id)
            self._look_for_tags()

    @property
    def _told(self) -> TokenFilter | None:
        """The constraint, where it is told of the next token."""
        is_thinking = self._state in (_State.THINKING, _State.FORCING)
        return None if is_thinking and self._budget.is_inner_blind else self._inner

    def _look_for_tags(self) -> None:
        tags, text = self._budget.tags, self._text.lstrip()
        if self._state is _State.THINKING:
            self._num_thought += 1
            ends = (tags.end, *self._budget.interrupts)
            if any(end in self._text for end in ends):
                self._state = _State.OVER
            else:
                self._text = self._text[1 - max(map(len, ends)) :]
                self._check_budget()
        elif text.startswith(tags.start):
            self._think()
        elif not tags.start.startswith(text):
            self._state = _State.OVER

    def _think(self) -> None:
        self._state, self._text = _State.THINKING, ""
        self._check_budget()

    def _check_budget(self) -> None:
        if self._budget.num_tokens is not None and self._num_thought >= self._budget.num_tokens:
            self._state = _State.FORCING
