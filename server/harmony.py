"""Replies in messages with channels, OpenAI's harmony form: thinking in `analysis`, what is said in `final`, and calls
of tools in messages to `functions.name`.

Source: OpenAI's guide to the harmony response format, and the chat templates that write it.
"""

import re
from collections.abc import Callable

from server.replies.parts import CallArguments, CallStart, Content, Part, Reasoning, random_id
from server.replies.reasoning import HARMONY_TAGS
from server.tools.source import NoCall, Source, Steps

FINAL = "<|channel|>final<|message|>"
MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
"""Words of the form that may be tokens of their own."""
_CALLED = "functions."
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>", "<|channel|>", "to=")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyReader:
    """Splits a text that comes in pieces into the parts of a reply."""

    def __init__(self, begun: str, *, splits_reasoning: bool, keeps_reasoning: bool, reads_calls: bool) -> None:
        """`begun`: what the prompt has of the reply, behind what stands before its first message. Where thinking is not
        split off, or is kept, the content has it in its tags; calls that are not read are content.
        """
        self._splits_reasoning = splits_reasoning
        self._keeps_reasoning = keeps_reasoning or not splits_reasoning
        self._reads_calls = reads_calls
        self._parts: list[Part] = []
        self._num_calls = 0
        self._show: Callable[[str], None] | None = None
        """Takes the text of the message that is being read; None between messages."""
        self._source = Source()
        self._steps = self._read()
        self.push(begun)

    def push(self, text: str) -> list[Part]:
        """Take the next piece; return what is certain."""
        self._source.held += text
        next(self._steps)
        return self._taken()

    def flush(self) -> list[Part]:
        """Return what was held back: no more text comes. A header that is not whole is none of it."""
        held, self._source.held = self._source.held, ""
        if self._show is not None:
            self._show(held)
        elif not held.startswith(_HEADS):
            self._add_content(held)
        return self._taken()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _read(self) -> Steps[None]:
        """Read messages, and what is none as content; never ends."""
        source = self._source
        while True:
            yield from source.blank()
            try:
                source.held = (yield from source.expect(*_HEADS)) + source.held
                header, _ = yield from source.until(_MESSAGE)
            except NoCall:
                self._show = self._add_content
                ends: tuple[str, ...] = ()
            else:
                self._show = self._begin_message(header)
                ends = _ENDS
            yield from source.text_until(ends, self._show)
            self._end_message()

    def _begin_message(self, header: str) -> Callable[[str], None]:
        """Return what takes the text of a message with this header."""
        recipient = _RECIPIENT.search(header)
        to = recipient[1] if recipient is not None else ""
        if self._reads_calls and to.startswith(_CALLED) and to != _CALLED:
            index, self._num_calls = self._num_calls, self._num_calls + 1
            self._parts.append(CallStart(index, "call_" + random_id(24), to.removeprefix(_CALLED)))
            return lambda text: self._parts.append(CallArguments(index, text))
        if to or "analysis" not in header:
            return self._add_content
        if self._keeps_reasoning:
            self._add_content(HARMONY_TAGS.start)
        return self._add_thoughts

    def _end_message(self) -> None:
        if self._show == self._add_thoughts and self._keeps_reasoning:
            self._add_content(HARMONY_TAGS.end)
        self._show = None

    def _add_content(self, text: str) -> None:
        self._parts.append(Content(text))

    def _add_thoughts(self, text: str) -> None:
        if self._splits_reasoning:
            self._parts.append(Reasoning(text))
        if self._keeps_reasoning:
            self._add_content(text)
