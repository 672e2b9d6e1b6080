"""The text of a call while it comes, for readers that are written as if all of it were there.

A reader is a generator that yields where it needs more text than is held. What it does depends on the text alone, not
on how that is cut into pieces.
"""

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from server.replies.reasoning import cut_at, unfinished_word
from server.tools.json_end import SPACE, JsonValue

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
MAX_WORD = 256
"""Characters of a name or a key, beyond which text is no call."""


class NoCall(Exception):
    """The text is not what a call goes on with."""


class Source:
    """Text that comes in pieces. `held` is what was not taken yet."""

    def __init__(self) -> None:
        self.held = ""

    def blank(self) -> Steps[None]:
        """Take white space, up to the next character that is none."""
        while not (held := self.held.lstrip(SPACE)):
            yield
        self.held = held

    def found(self, *words: str) -> Steps[str]:
        """Take the word that comes next; return it, or nothing where none of them does."""
        while True:
            for word in words:
                if self.held.startswith(word):
                    self.held = self.held.removeprefix(word)
                    return word
            if not any(word.startswith(self.held) for word in words):
                return ""
            yield

    def expect(self, *words: str) -> Steps[str]:
        """Take the word that comes next. Raises NoCall where none of them does."""
        word = yield from self.found(*words)
        if not word:
            raise NoCall
        return word

    def until(self, *ends: str) -> Steps[tuple[str, str]]:
        """Take a word and what ends it; return both. Raises NoCall where the word is too long."""
        while True:
            before, end = cut_at(self.held, ends)
            if len(before) > MAX_WORD + (0 if end else max(map(len, ends))):
                raise NoCall
            if end and len(before) <= MAX_WORD:
                self.held = self.held[len(before) + len(end) :]
                return before, end
            if end:
                raise NoCall
            yield

    def text_until(self, ends: tuple[str, ...], show: Callable[[str], None]) -> Steps[None]:
        """Take text and what ends it, and show the text as far as it is certain."""
        while True:
            before, end = cut_at(self.held, ends)
            if end:
                show(before)
                self.held = self.held[len(before) + len(end) :]
                return
            num_certain = len(before) - unfinished_word(before, ends)
            show(before[:num_certain])
            self.held = before[num_certain:]
            yield

    def json(self, show: Callable[[str], None] | None = None) -> Steps[str]:
        """Take a JSON value and return its text; an object or a list is shown as it comes."""
        value, taken = JsonValue(), ""
        yield from self.blank()
        while not value.is_complete:
            num_taken = 0
            while num_taken < len(self.held) and not value.is_complete and value.take(self.held[num_taken]):
                num_taken += 1
            piece, self.held = self.held[:num_taken], self.held[num_taken:]
            taken += piece
            if show is not None and not value.is_string:
                show(piece)
            if not value.is_complete:
                yield
        return taken
