"""Which tags a model thinks between, and the text between them told from the reply that follows it.

A model's chat template shows its tags. Thinking comes first: tags further on are text like any other. White space at
its ends, and after its end tag, belongs to the layout and not to the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from server.replies.parts import Content, Part, Reasoning


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands before thinking and after it."""

    start: str
    end: str


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|channel>thought", "<channel|>"),
)


HARMONY_TAGS = ReasoningTags("<|channel|>analysis<|message|>", "<|end|>")
"""Of templates whose replies have channels (harmony.py)."""


def tags_in(template: str) -> ReasoningTags | None:
    """Return the tags that a chat template knows, None where it knows none."""
    if HARMONY_TAGS.start in template:
        return HARMONY_TAGS
    return next((tags for tags in _KNOWN if tags.end in template), None)


def is_open(text: str, tags: ReasoningTags) -> bool:
    """Whether thinking has begun in `text`, the end of a prompt, and has not ended."""
    return text.rfind(tags.start) > text.rfind(tags.end)


def cut_at(text: str, words: Sequence[str]) -> tuple[str, str]:
    """Return the text before the first of the words in it, the longest of those that begin there, and that word; the
    whole text and nothing where there is none.
    """
    places = [(place, -len(word), word) for word in words if (place := text.find(word)) >= 0]
    if not places:
        return text, ""
    place, _, word = min(places)
    return text[:place], word


def unfinished_word(text: str, words: Sequence[str]) -> int:
    """Return the length of the end of `text` that may become one of `words`."""
    longest = 0
    for word in words:
        for length in range(min(len(word) - 1, len(text)), longest, -1):
            if text.endswith(word[:length]):
                longest = length
                break
    return longest


def unfinished_marker(text: str, markers: Sequence[str]) -> int:
    """Return the length of the end of `text` that may become one of `markers`, with the white space before it."""
    return len(text) - len(text[: len(text) - unfinished_word(text, markers)].rstrip())


def thinking_span(text: str, tags: ReasoningTags, *, is_begun: bool, interrupts: Sequence[str] = ()) -> range:
    """Return which characters of a whole text are thinking, without its tags, white space at its ends included.
    `interrupts` end thinking as well.
    """
    start = 0
    if not is_begun:
        reply = text.lstrip()
        if not reply.startswith(tags.start):
            return range(0)
        start = len(text) - len(reply) + len(tags.start)
    thoughts, _ = cut_at(text[start:], (tags.end, *interrupts))
    return range(start, start + len(thoughts))


class _State(Enum):
    BEFORE = auto()
    """Nothing but white space, and perhaps the beginning of the start tag, has come."""
    FIRST = auto()
    """The start tag has come, and no thought yet."""
    INSIDE = auto()
    AFTER = auto()
    """The end tag has come, and nothing but white space since."""
    REST = auto()


class ReasoningReader:
    """Splits a text that comes in pieces, however they are cut, into thinking and the rest."""

    def __init__(
        self, tags: ReasoningTags, *, is_begun: bool, keeps_tags: bool = False, interrupts: Sequence[str] = ()
    ) -> None:
        """`is_begun`: the prompt ends with the start tag. `keeps_tags`: the rest is the whole text, tags included.
        `interrupts` end thinking as well, and belong to the rest.
        """
        self._tags = tags
        self._ends = (tags.end, *interrupts)
        self._state = _State.FIRST if is_begun else _State.BEFORE
        self._keeps_tags = keeps_tags
        self._held = ""

    def push(self, text: str) -> list[Part]:
        """Take the next piece; return what is certain. The rest comes as Content."""
        if self._state is _State.REST:
            return [Content(text)]
        parts: list[Part] = [Content(text)] if self._keeps_tags else []
        self._held += text
        while (step := self._step()) is not None:
            parts += step
        return parts

    def flush(self) -> list[Part]:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        match self._state:
            case _State.FIRST | _State.INSIDE:
                return [Reasoning(held.rstrip())]
            case _State.BEFORE:
                return self._rest(held)
            case _:
                return []

    def _rest(self, text: str) -> list[Part]:
        return [] if self._keeps_tags else [Content(text)]

    def _step(self) -> list[Part] | None:
        """Go on in the text that is held; None where nothing more is certain."""
        held = self._held
        start = held.lstrip()
        match self._state:
            case _State.BEFORE:
                if start.startswith(self._tags.start):
                    self._become(_State.FIRST, start.removeprefix(self._tags.start))
                    return []
                if self._tags.start.startswith(start):
                    return None
                self._become(_State.REST, "")
                return self._rest(held)
            case _State.FIRST if start:
                self._become(_State.INSIDE, start)
                return []
            case _State.INSIDE:
                return self._think()
            case _State.AFTER if start:
                self._become(_State.REST, "")
                return self._rest(start)
            case _:
                return None

    def _think(self) -> list[Part] | None:
        before, end = cut_at(self._held, self._ends)
        if end:
            self._become(_State.AFTER, self._held[len(before) :].removeprefix(self._tags.end))
            return [Reasoning(before.rstrip())]
        num_certain = len(before) - unfinished_marker(before, self._ends)
        if not num_certain:
            return None
        self._held = before[num_certain:]
        return [Reasoning(before[:num_certain])]

    def _become(self, state: _State, held: str) -> None:
        self._state, self._held = state, held
