"""What a reply is made of: reasoning, content and calls of tools, as pieces in their order and as a whole.

A *reply* is the assistant's message that a model writes. Pure values; nobody's dialect.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; calls are counted from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Part: TypeAlias = Reasoning | Content | CallStart | CallArguments


def joined(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with neighbours of one kind made one, and empty ones left out."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case (Reasoning(before), Reasoning(text)):
                result[-1] = Reasoning(before + text)
            case (Content(before), Content(text)):
                result[-1] = Content(before + text)
            case (CallArguments(index, before), CallArguments(same, text)) if index == same:
                result[-1] = CallArguments(index, before + text)
            case (_, CallStart()):
                result.append(part)
            case _ if part.text:
                result.append(part)
    return result


@dataclass(slots=True)
class ToolCall:
    """A call of a tool; `arguments` is JSON, unless the reply ended in the middle of it."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """A reply as far as its parts have come."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Take the next part."""
        match part:
            case Reasoning(text):
                self.reasoning += text
            case Content(text):
                self.content += text
            case CallStart(_, call_id, name):
                self.calls.append(ToolCall(call_id, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text


_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def random_id(length: int) -> str:
    """Return a random word of letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
