"""Where a regular expression first matches a text that grows, in a time that no expression can drive up.

All ways to match are followed at once, in the order in which a search that tried one after the other would prefer them,
each with where its groups have begun and ended (Pike's machine: Cox, "Regular Expression Matching: the Virtual Machine
Approach", 2009). The language is that of bounded_regex.py, without what looks ahead; `$` is the end of the text so far.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from model.bounded_regex import MAX_REPEAT, RegexError, character_test, is_word, parse_regex

MAX_STEPS = 400
"""Of an expression, its repetitions written out: so many ways are followed at most, with each character."""

_Saves: TypeAlias = tuple[int, ...]
"""Where groups begin and end, two places for each, the whole match first; -1 where they have not."""
_Thread: TypeAlias = tuple[int, _Saves]
"""A step, and what was saved on the way to it."""


@dataclass(slots=True)
class _Read:
    test: Callable[[str], bool]


@dataclass(slots=True)
class _Fork:
    preferred: int = -1
    other: int = -1


@dataclass(slots=True)
class _Save:
    place: int


@dataclass(slots=True)
class _At:
    name: str


_Step: TypeAlias = _Read | _Fork | _Save | _At
_PLACES = {"AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING", "AT_BOUNDARY", "AT_NON_BOUNDARY"}


class TriggerPattern:
    """A compiled expression. Nothing about a text is kept in it."""

    def __init__(self, pattern: str, *, is_whole: bool) -> None:
        """`is_whole`: it must match the whole text so far. Raises RegexError."""
        self.is_whole = is_whole
        self.steps: list[_Step] = []
        parsed = parse_regex(pattern)
        self.num_groups: int = parsed.state.groups
        """The whole match among them."""
        self._num_visited = 0
        try:
            self._emit_all(parsed)
        except RecursionError as error:
            raise RegexError("is nested too deeply") from error
        if is_whole:
            self._emit(_At("AT_END"))

    def search(self) -> "PatternSearch":
        """Return a search in a text that is empty so far."""
        return PatternSearch(self)

    def _emit(self, step: _Step) -> None:
        if len(self.steps) == MAX_STEPS:
            raise RegexError(f"is too large: with its repetitions written out, it has more than {MAX_STEPS} steps")
        self.steps.append(step)

    def _emit_all(self, items: Iterable[tuple[Any, Any]]) -> None:
        self._num_visited += 1
        if self._num_visited > 10 * MAX_STEPS:  # repetitions of nothing
            raise RegexError("is too large")
        for code, argument in items:
            self._emit_one(str(code), argument)

    def _emit_one(self, code: str, argument: Any) -> None:
        test = character_test(code, argument)
        match code:
            case _ if test is not None:
                self._emit(_Read(test))
            case "BRANCH":
                self._emit_branches(argument[1])
            case "SUBPATTERN":
                self._emit_group(*argument)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, items = argument
                self._emit_repeat(int(least), int(most), items, is_greedy=code == "MAX_REPEAT")
            case "AT" if str(argument) in _PLACES:
                self._emit(_At(str(argument)))
            case _:
                raise RegexError(f"uses {code.lower().replace('_', ' ')}, which is not supported")

    def _emit_branches(self, branches: list[Any]) -> None:
        ends: list[_Fork] = []
        for items in branches[:-1]:
            fork = _Fork(len(self.steps) + 1)
            self._emit(fork)
            self._emit_all(items)
            ends.append(_Fork())
            self._emit(ends[-1])
            fork.other = len(self.steps)
        self._emit_all(branches[-1])
        for end in ends:
            end.preferred = len(self.steps)

    def _emit_group(self, group: int | None, added_flags: int, removed_flags: int, items: Any) -> None:
        if added_flags or removed_flags:
            raise RegexError("sets flags, which is not supported")
        if group is not None:
            self._emit(_Save(2 * group))
        self._emit_all(items)
        if group is not None:
            self._emit(_Save(2 * group + 1))

    def _emit_repeat(self, least: int, most: int, items: Any, *, is_greedy: bool) -> None:
        for _ in range(least):
            self._emit_all(items)
        if most == MAX_REPEAT:
            loop = len(self.steps)
            fork = self._emit_optional(items)
            self._emit(_Fork(loop))
            self._close(fork, is_greedy=is_greedy)
            return
        forks = [self._emit_optional(items) for _ in range(most - least)]
        for fork in forks:
            self._close(fork, is_greedy=is_greedy)

    def _emit_optional(self, items: Any) -> _Fork:
        fork = _Fork(len(self.steps) + 1)
        self._emit(fork)
        self._emit_all(items)
        return fork

    def _close(self, fork: _Fork, *, is_greedy: bool) -> None:
        """Let a fork lead behind what has been written, as its second choice or its first."""
        fork.other = len(self.steps)
        if not is_greedy:
            fork.preferred, fork.other = fork.other, fork.preferred


class PatternSearch:
    """How far all ways through one expression have come in one text."""

    def __init__(self, pattern: TriggerPattern) -> None:
        self._pattern = pattern
        self._threads: list[_Thread] = []
        """Before the next character, the preferred first."""
        self._position = 0
        self._previous = ""

    def push(self, text: str) -> int | None:
        """Take what the text goes on with; return where its first group begins that is not empty, or else the match,
        where the text now has one. Nothing may follow then.
        """
        found: _Saves | None = None
        for character in text:
            found = self._read(character, found)
        _, at_end = self._follow("", may_begin=found is None)
        found = found if at_end is None else at_end
        return None if found is None else _start(found)

    def _read(self, character: str, found: _Saves | None) -> _Saves | None:
        """Go over one character; return the match that is preferred so far."""
        readers, ended = self._follow(character, may_begin=found is None)
        self._threads = [(at + 1, saves) for at, step, saves in readers if step.test(character)]
        self._position += 1
        self._previous = character
        return found if ended is None or self._pattern.is_whole else ended

    def _follow(self, following: str, *, may_begin: bool) -> tuple[list[tuple[int, _Read, _Saves]], _Saves | None]:
        """Return the ways that go on with a character, preferred first, as far as none of them has ended before; and
        what the first that has ended has saved. `following` is that character, empty at the end of the text.
        """
        readers: list[tuple[int, _Read, _Saves]] = []
        visited: set[int] = set()
        for thread in self._beginnings(may_begin=may_begin):
            stack = [thread]
            while stack:
                at, saves = stack.pop()
                if at in visited:
                    continue
                visited.add(at)
                if at == len(self._pattern.steps):
                    return readers, saves
                match self._pattern.steps[at]:
                    case _Read() as step:
                        readers.append((at, step, saves))
                    case _Fork(preferred, other):
                        stack += [(other, saves), (preferred, saves)] if other >= 0 else [(preferred, saves)]
                    case _Save(place):
                        stack.append((at + 1, (*saves[:place], self._position, *saves[place + 1 :])))
                    case _At(name):
                        stack += [(at + 1, saves)] if self._is_at(name, following) else []
        return readers, None

    def _beginnings(self, *, may_begin: bool) -> Iterator[_Thread]:
        yield from self._threads
        if may_begin and (self._position == 0 or not self._pattern.is_whole):
            yield 0, (self._position, *[-1] * (2 * self._pattern.num_groups - 1))

    def _is_at(self, name: str, following: str) -> bool:
        match name:
            case "AT_BEGINNING" | "AT_BEGINNING_STRING":
                return self._position == 0
            case "AT_END" | "AT_END_STRING":
                return not following
        is_boundary = _is_word(self._previous) != _is_word(following)
        return is_boundary == (name == "AT_BOUNDARY")


def _is_word(character: str) -> bool:
    return bool(character) and is_word(character)


def _start(saves: _Saves) -> int:
    groups = zip(saves[2::2], saves[3::2], strict=True)
    return next((start for start, end in groups if 0 <= start < end), saves[0])
