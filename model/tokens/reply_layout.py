"""How a chat template writes an assistant's message, found by rendering one: what stands before its content, and around
what it thought. It must not know of requests.

Templates read thoughts from different places of a message, and put different marks around them. What comes out is what
the template itself writes into a conversation, white space included.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

Message = Mapping[str, object]
Render = Callable[[Sequence[Message], bool, bool], str | None]
"""From messages, whether a reply is to begin, and whether it is to think, to a prompt; None: the template refuses."""


class ThoughtsPlace(Enum):
    """Where in a message a template looks for thoughts."""

    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    PART = "part"
    """A part of the content, with the type `thinking`."""


@dataclass(frozen=True, slots=True)
class ThinkingLayout:
    """What stands around thoughts."""

    start: str
    """Between the header of the message and the thought."""
    end: str
    """Between the thought and the content."""
    lead: str = ""
    """What a reply that is to begin has after `start`."""
    place: ThoughtsPlace = ThoughtsPlace.REASONING_CONTENT

    def without_begun(self, prompt: str) -> str:
        """Return a prompt without the thinking that it begins, and perhaps ends, at its end."""
        start, rest = self.start.strip(), prompt.rstrip()
        for inside in (self.lead, self.end.strip(), ""):
            before = rest.removesuffix(inside).rstrip()
            if start and before.endswith(start) and rest.endswith(inside):
                return before.removesuffix(start)
        return prompt

    def has_ended(self, prompt: str) -> bool:
        """Whether a prompt says at its end that there is no thinking."""
        return bool(self.end.strip()) and prompt.rstrip().endswith(self.end.strip())


@dataclass(frozen=True, slots=True)
class ReplyLayout:
    """What a template writes before the parts of an assistant's message."""

    thinking: ThinkingLayout | None
    """None: it shows no thoughts."""
    content_lead: str
    """What stands before the content of a message without thoughts, and not in a reply that is to begin."""


def reply_layout(render: Render) -> ReplyLayout:
    """Return how a template writes an assistant's message."""
    layouts = (_layout(render, place) for place in ThoughtsPlace)
    thinking = next((layout for layout in layouts if layout is not None), None) or _layout_of_none(render)
    return ReplyLayout(thinking, _content_lead(render))


def with_thoughts(message: Message, thoughts: str, place: ThoughtsPlace) -> dict[str, object]:
    """Return an assistant's message with its thoughts where a template looks for them."""
    others = {name: value for name, value in message.items() if name != ThoughtsPlace.REASONING_CONTENT.value}
    if place is not ThoughtsPlace.PART:
        return {**others, place.value: thoughts}
    content = others.get("content") or ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {**others, "content": [{"type": "thinking", "thinking": thoughts}, *parts]}


_THOUGHT, _ANSWER = "probed_thought", "probed_answer"
_USER: Message = {"role": "user", "content": "probed_question"}
_REPLY: Message = {"role": "assistant", "content": _ANSWER}
_MARK = r"(?:<[^<>]*>|\[[^\[\]]*\])"
_MARK_AT_END = re.compile(rf"{_MARK}\s*\Z")
_TWO_MARKS = re.compile(rf"(?P<start>{_MARK}(?:\w+\s)?)\s*(?P<end>{_MARK})\s*")


def _layout(render: Render, place: ThoughtsPlace) -> ThinkingLayout | None:
    """Return the layout where the template shows the thoughts of a message."""
    opening = _opening(render, with_thoughts(_REPLY, _THOUGHT, place))
    before, thought, end = (opening or "").partition(_THOUGHT)
    if not thought or re.search("[\"']type[\"']", end):
        return None  # nothing of it is shown, or all of it, as data
    header = _header(render, thinks=True) or ""
    shared = next((length for length in range(len(before), 0, -1) if header.startswith(before[:length])), 0)
    start = before[shared:].lstrip("\n")
    if not start and (mark := _MARK_AT_END.search(before)) is not None:
        start = mark[0]  # a reply that is to begin has the mark, too
    _, mark_in_header, lead = header.rpartition(start.strip()) if start else ("", "", "")
    return ThinkingLayout(start, end, lead.strip() if mark_in_header else "", place)


def _layout_of_none(render: Render) -> ThinkingLayout | None:
    """Return the layout where a reply that is not to think begins with thinking that has ended."""
    thinking, silent = _header(render, thinks=True), _header(render, thinks=False)
    if thinking is None or silent is None or not silent.startswith(thinking):
        return None
    marks = _TWO_MARKS.fullmatch(silent.removeprefix(thinking))
    return None if marks is None else ThinkingLayout(marks["start"], marks["end"])


def _content_lead(render: Render) -> str:
    opening, header = _opening(render, _REPLY), _header(render, thinks=True)
    return opening.removeprefix(header) if opening is not None and header and opening.startswith(header) else ""


def _opening(render: Render, reply: Message) -> str | None:
    """Return what the template writes of a reply up to its content."""
    asked, answered = render([_USER], False, True), render([_USER, reply], False, True)
    if asked is None or answered is None or not answered.startswith(asked):
        return None
    before, answer, _ = answered.removeprefix(asked).partition(_ANSWER)
    return before if answer else None


def _header(render: Render, *, thinks: bool) -> str | None:
    """Return what the template writes where a reply is to begin."""
    asked, begun = render([_USER], False, thinks), render([_USER], True, thinks)
    return None if asked is None or begun is None or not begun.startswith(asked) else begun.removeprefix(asked)
