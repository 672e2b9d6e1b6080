"""Whether a regular expression matches a whole text, in a time that no expression can drive up.

Python's `re` tries one way after the other, and an expression from a stranger's file can have more ways than there is
time. Here all ways are followed at once: what an expression has read so far is a set of positions in the text, one bit
each, and every part of it maps the set of its starts to the set of its ends (Thompson, "Regular expression search
algorithm", 1968). The language is that of `re`, without what needs a memory of the way taken: back references, atomic
groups, look-behind, flags. Knows nothing of adapters.
"""

import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# The parser of `re` itself, so that expressions mean what they mean there.
_parser: Any = importlib.import_module("re._parser")

MAX_LENGTH = 10_000
MAX_REPEAT: int = _parser.MAXREPEAT
"""How often what has no bound may be repeated."""
_PLAIN_FLAGS = 32  # what an expression for text has without any flag of its own


class RegexError(ValueError):
    """An expression that is not one, that is not understood, or that costs too much."""


@dataclass(slots=True)
class Budget:
    """How many steps the matches that share it may take together: about a second of them."""

    steps_left: int = 1_000_000

    def spend(self) -> None:
        """Count one step. Raises RegexError where they are used up."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise RegexError("takes too long to match")


class BoundedRegex:
    """A compiled expression."""

    def __init__(self, pattern: str, budget: Budget) -> None:
        """Raises RegexError where the expression is damaged, or uses what is not understood."""
        parsed = parse_regex(pattern)
        try:
            self._step = _sequence(parsed)
        except RecursionError as error:
            raise RegexError("is nested too deeply") from error
        self._budget = budget

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Raises RegexError where the budget is used up."""
        try:
            return bool(self._step(_Run(text, self._budget), 1) >> len(text))
        except RecursionError as error:
            raise RegexError("is nested too deeply") from error


def parse_regex(pattern: str) -> Any:
    """Return what an expression consists of, as the parser of `re` says it. Raises RegexError."""
    if len(pattern) > MAX_LENGTH:
        raise RegexError(f"has {len(pattern)} characters, at most {MAX_LENGTH} are read")
    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError) as error:
        raise RegexError(f"is not a regular expression ({error})") from error
    except RecursionError as error:
        raise RegexError("is nested too deeply") from error
    if parsed.state.flags != _PLAIN_FLAGS:
        raise RegexError("sets flags, which is not supported")
    return parsed


class _Run:
    """One text being read; position i is bit i."""

    def __init__(self, text: str, budget: Budget) -> None:
        self.text = text
        self.spend = budget.spend
        self._places: dict[str | _Test, int] = {}

    def places(self, wanted: "str | _Test") -> int:
        """Return the positions where that string stands, or a character that passes that test."""
        if wanted not in self._places:
            if isinstance(wanted, str):
                found = [i for i in range(len(self.text)) if self.text.startswith(wanted, i)]
            else:
                found = [i for i, character in enumerate(self.text) if wanted(character)]
            self._places[wanted] = sum(1 << i for i in found)
        return self._places[wanted]


_Test: TypeAlias = Callable[[str], bool]
_Step: TypeAlias = Callable[[_Run, int], int]
_Item: TypeAlias = tuple[Any, Any]


def _sequence(items: Iterable[_Item]) -> _Step:
    steps: list[_Step] = []
    for is_literal, group in itertools.groupby(items, lambda item: str(item[0]) == "LITERAL"):
        if is_literal:
            steps.append(_literal("".join(chr(argument) for _, argument in group)))
        else:
            steps.extend(_compile(str(code), argument) for code, argument in group)

    def run_all(run: _Run, starts: int) -> int:
        for step in steps:
            if not starts:
                return 0
            run.spend()
            starts = step(run, starts)
        return starts

    return run_all


def _compile(code: str, argument: Any) -> _Step:
    if test := character_test(code, argument):
        return _character(test)
    match code:
        case "BRANCH":
            return _branch([_sequence(items) for items in argument[1]])
        case "SUBPATTERN":
            _, added_flags, removed_flags, items = argument
            if added_flags or removed_flags:
                raise RegexError("sets flags, which is not supported")
            return _sequence(items)
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, items = argument
            test = character_test(str(items[0][0]), items[0][1]) if len(items) == 1 else None
            if test is not None and most == MAX_REPEAT:
                return _repeat_character(test, int(least))
            return _repeat(_sequence(items), int(least), int(most))
        case "AT":
            return _at(str(argument))
        case "ASSERT" | "ASSERT_NOT":
            direction, items = argument
            if direction < 0:
                raise RegexError("looks behind, which is not supported")
            return _look_ahead(_sequence(items), is_wanted=code == "ASSERT")
    raise RegexError(f"uses {code.lower().replace('_', ' ')}, which is not supported")


def _literal(text: str) -> _Step:
    return lambda run, starts: (starts & run.places(text)) << len(text)


def _character(test: _Test) -> _Step:
    return lambda run, starts: (starts & run.places(test)) << 1


def character_test(code: str, argument: Any) -> "_Test | None":
    """Return what an item asks of a character, None for an item that is about anything else."""
    match code:
        case "LITERAL":
            return _between(argument, argument)
        case "NOT_LITERAL":
            return lambda character: character != chr(argument)
        case "ANY":
            return lambda character: character != "\n"
        case "IN":
            return _membership(argument)
    return None


def _branch(steps: Sequence[_Step]) -> _Step:
    def run_each(run: _Run, starts: int) -> int:
        ends = 0
        for step in steps:
            ends |= step(run, starts)
        return ends

    return run_each


def _repeat(step: _Step, least: int, most: int) -> _Step:
    def run_often(run: _Run, starts: int) -> int:
        # Beyond as many repetitions as the text has characters, one of them is empty, and another changes nothing.
        enough = len(run.text) + 1
        for _ in range(min(least, enough)):
            run.spend()
            starts = step(run, starts)
        ends = fresh = starts
        for _ in range(min(most - least, enough)):
            if not fresh:
                break
            run.spend()
            fresh = step(run, fresh) & ~ends
            ends |= fresh
        return ends

    return run_often


def _repeat_character(test: _Test, least: int) -> _Step:
    """Return the step of x*, x+ or x{3,}, by far the most frequent repetitions."""

    def run_on(run: _Run, starts: int) -> int:
        places = run.places(test)
        for _ in range(min(least, len(run.text) + 1)):
            starts = (starts & places) << 1
        distance, reachable = 1, places << 1
        while distance <= len(run.text):  # in strides of 1, 2, 4, …
            starts |= starts << distance & reachable
            reachable &= reachable << distance
            distance *= 2
        return starts

    return run_on


def _at(name: str) -> _Step:
    def keep(run: _Run, starts: int) -> int:
        text, end = run.text, len(run.text)
        match name:
            case "AT_BEGINNING" | "AT_BEGINNING_STRING":
                return starts & 1
            case "AT_END":
                return starts & (1 << end | (1 << end - 1 if text.endswith("\n") else 0))
            case "AT_END_STRING":
                return starts & 1 << end
        words = run.places(is_word)
        boundaries = words ^ words << 1
        return starts & boundaries if name == "AT_BOUNDARY" else starts & ~boundaries

    if name not in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING", "AT_BOUNDARY", "AT_NON_BOUNDARY"):
        raise RegexError(f"uses {name.lower().replace('_', ' ')}, which is not supported")
    return keep


def _look_ahead(step: _Step, *, is_wanted: bool) -> _Step:
    def keep(run: _Run, starts: int) -> int:
        kept = 0
        for i in range(len(run.text) + 1):
            if starts >> i & 1:
                run.spend()
                kept |= (1 << i) if bool(step(run, 1 << i)) == is_wanted else 0
        return kept

    return keep


def _membership(items: Sequence[_Item]) -> _Test:
    """Return whether a character is in a class, [a-z_] or [^.]."""
    tests: list[_Test] = []
    is_negated = False
    for code, argument in items:
        match str(code):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                tests.append(_between(argument, argument))
            case "RANGE":
                tests.append(_between(*argument))
            case "CATEGORY":
                tests.append(_category(str(argument)))
            case other:
                raise RegexError(f"uses {other.lower()} in a class, which is not supported")
    return lambda character: any(test(character) for test in tests) != is_negated


def _between(first: int, last: int) -> _Test:
    return lambda character: first <= ord(character) <= last


def _category(name: str) -> _Test:
    kind = name.removeprefix("CATEGORY_").removeprefix("NOT_")
    tests = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": is_word}
    if kind not in tests:
        raise RegexError(f"uses {name.lower().replace('_', ' ')}, which is not supported")
    is_negated = name.startswith("CATEGORY_NOT_")
    return lambda character: tests[kind](character) != is_negated


def is_word(character: str) -> bool:
    """Whether a character is one of a word."""
    return character.isalnum() or character == "_"
