"""The items of a response's output: reasoning, a message and calls of functions, as they grow, with the events that
tell of it.

Source: OpenAI's API reference; the events' order is that of its streaming guide. Knows no sequence numbers.
"""

import secrets
from collections.abc import Sequence

from server.replies.parts import CallArguments, CallStart, Content, Part, Reasoning
from server.streaming import Json

_IN_PROGRESS = "in_progress"


class OutputItems:
    """The items of one response, in their order. At most the last one is open."""

    def __init__(self) -> None:
        self.text = ""
        """Of the open item. Who sends pieces of it by himself puts it here before the item ends."""
        self._items: list[Json] = []
        self._is_open = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing has begun."""
        return not self._items

    @property
    def open_id(self) -> str:
        """The id of the open item."""
        return str(self._items[-1]["id"])

    def so_far(self, status: str) -> list[Json]:
        """Return all items, the open one with its text up to now and this status."""
        if not self._is_open:
            return self._items
        return [*self._items[:-1], self._finished(status)]

    def begin_message(self) -> list[Json]:
        """Begin the message."""
        return self._begin({"type": "message", "id": _new_id("msg"), "role": "assistant", "content": []})

    def add(self, part: Part) -> list[Json]:
        """Take the next part."""
        match part:
            case Reasoning(text):
                begun = [] if self._open_type == "reasoning" else self._begin(_reasoning())
                return [*begun, self._delta("response.reasoning_text.delta", text)]
            case Content(text):
                begun = [] if self._open_type == "message" else self.begin_message()
                return [*begun, self._delta("response.output_text.delta", text)]
            case CallStart(_, call_id, name):
                return self._begin({"type": "function_call", "id": _new_id("fc"), "call_id": call_id, "name": name})
            case CallArguments(_, text):
                return [self._delta("response.function_call_arguments.delta", text)]

    def end(self, status: str = "completed") -> list[Json]:
        """End the open item, if there is one."""
        if not self._is_open:
            return []
        kind = self._open_type
        item = self._items[-1] = self._finished(status)
        self._is_open = False
        if kind == "function_call":
            done = self._event("response.function_call_arguments.done", name=item["name"], arguments=self.text)
            return [done, self._item_event("response.output_item.done")]
        name = "response.output_text.done" if kind == "message" else "response.reasoning_text.done"
        logprobs: Json = {"logprobs": []} if kind == "message" else {}
        return [
            self._text_event(name, text=self.text, **logprobs),
            self._text_event("response.content_part.done", part=_part(kind, self.text)),
            self._item_event("response.output_item.done"),
        ]

    def text_delta(self, text: str) -> Json:
        """Return the event of a piece of the message's text, which is not taken."""
        return self._text_event("response.output_text.delta", delta=text, logprobs=[])

    @property
    def _open_type(self) -> str:
        return str(self._items[-1]["type"]) if self._is_open else ""

    def _begin(self, item: Json) -> list[Json]:
        ended = self.end()
        self._is_open, self.text = True, ""
        self._items.append({**item, "status": _IN_PROGRESS})
        kind = self._open_type
        if kind == "function_call":
            self._items[-1]["arguments"] = ""
            return [*ended, self._item_event("response.output_item.added")]
        part = self._text_event("response.content_part.added", part=_part(kind, ""))
        return [*ended, self._item_event("response.output_item.added"), part]

    def _delta(self, kind: str, text: str) -> Json:
        self.text += text
        if kind == "response.output_text.delta":
            return self.text_delta(text)
        return self._event(kind, delta=text) if "arguments" in kind else self._text_event(kind, delta=text)

    def _finished(self, status: str) -> Json:
        item = {**self._items[-1], "status": status}
        if self._open_type == "function_call":
            return {**item, "arguments": self.text}
        return {**item, "content": [_part(self._open_type, self.text)]}

    def _event(self, kind: str, **content: object) -> Json:
        return {"type": kind, "item_id": self.open_id, "output_index": len(self._items) - 1, **content}

    def _text_event(self, kind: str, **content: object) -> Json:
        return self._event(kind, content_index=0, **content)

    def _item_event(self, kind: str) -> Json:
        return {"type": kind, "output_index": len(self._items) - 1, "item": dict(self._items[-1])}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


def _reasoning() -> Json:
    return {"type": "reasoning", "id": _new_id("rs"), "summary": [], "content": []}


def _part(kind: str, text: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def output_of(parts: Sequence[Part], status: str) -> list[Json]:
    """Return the items of a whole output. Where there are no parts it is an empty message."""
    items = OutputItems()
    for part in parts:
        items.add(part)
    if items.is_empty:
        items.begin_message()
    items.end(status)
    return items.so_far(status)
