"""How a reply looks in chat completions: as a message, and as what a chunk adds to one. Key order is llama-server's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.batch import Sample
from server.replies.parts import CallArguments, CallStart, Content, Part, Reasoning, Reply
from server.reply import ReplyReader
from server.streaming import Json


@dataclass(slots=True)
class ChoiceReader:
    """Reads the reply of one choice while it is streamed."""

    reader: ReplyReader
    samples: list[Sample] = field(default_factory=list)
    """Tokens of text that is held back."""


def message_of(reply: Reply) -> Json:
    """Return the message that a reply is. Where there are calls and nothing is said, its content is null."""
    message: Json = {"role": "assistant", "content": reply.content or (None if reply.calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.call_id}
            for call in reply.calls
        ]
    return message


def delta_of(parts: Sequence[Part]) -> Json:
    """Return what parts add to a message."""
    delta: Json = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        match part:
            case Reasoning(text):
                delta["reasoning_content"] = text
            case Content(text):
                delta["content"] = str(delta.get("content", "")) + text
            case CallStart(index, call_id, name):
                called = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_id, "type": "function", "function": called}
            case CallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    return delta | {"tool_calls": list(calls.values())} if calls else delta
