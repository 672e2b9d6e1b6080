"""How a reply is read: which of its text is reasoning, which is content, and which calls tools.

Decided by the chat template and the request before the first token. A request whose reply is all text has no form, and
then nobody looks into its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.constraints.thinking import Thinking
from model.tokens.tokenizer import Tokenizer
from server import harmony
from server.harmony import HarmonyReader
from server.replies.parts import Content, Part, Reply, joined
from server.replies.reasoning import HARMONY_TAGS, ReasoningReader, ReasoningTags
from server.tools.fields import Tool
from server.tools.formats import CallFormat
from server.tools.harmony_call import START
from server.tools.parser import ToolCallReader


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What the parts of a reply look like in its text."""

    reasoning: ReasoningTags | None = None
    """None: thinking, if any, is part of the text."""
    is_reasoning_begun: bool = False
    """Whether the prompt ends with the start tag."""
    may_think: bool = True
    """Whether it may begin with thinking where its text is constrained."""
    keeps_reasoning: bool = False
    """Whether the content has the thinking too, tags included."""
    calls: CallFormat | None = None
    """None: tools cannot be called."""
    tools: tuple[Tool, ...] = ()
    has_channels: bool = False
    """Whether it is written in harmony's messages (harmony.py)."""
    begun: str = ""
    """What the prompt has of such a reply."""

    @property
    def thinking(self) -> Thinking | None:
        """What may come before text that is constrained."""
        tags = self.reasoning
        if self.has_channels:
            return self._harmony_thinking(harmony.FINAL)
        if tags is None or not (self.may_think or self.is_reasoning_begun):
            return None
        return Thinking(tags.start, tags.end, self.is_reasoning_begun, excluded=self.interrupts)

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The words of calls that end thinking, beside its tag."""
        return () if self.calls is None else self.calls.interrupts

    @property
    def thinking_before_calls(self) -> Thinking | None:
        """What may come before calls."""
        return self._harmony_thinking("") if self.has_channels else self.thinking

    def _harmony_thinking(self, header: str) -> Thinking | None:
        if harmony.FINAL in self.begun:
            return None
        tags = HARMONY_TAGS
        return Thinking(tags.start, tags.end, self.is_reasoning_begun, self.reasoning is not None, START, header)

    def visible_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the control tokens that mark parts, whose text readers must see."""
        tags = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        markers = (
            *(harmony.MARKERS if self.has_channels else tags),
            *(self.calls.markers if self.calls is not None else ()),
        )
        ids = {token_id for marker in markers for token_id in tokenizer.encode(marker)}
        return frozenset(token_id for token_id in ids if tokenizer.is_control(token_id)) - tokenizer.eog_ids


class ReplyReader:
    """Reads one reply whose text comes in pieces. The parts do not depend on how it is cut."""

    def __init__(self, form: ReplyForm) -> None:
        self.reply = Reply()
        """What has come so far."""
        self._channels: HarmonyReader | None = None
        self._reasoning: ReasoningReader | None = None
        self._calls: ToolCallReader | None = None
        if form.has_channels:
            self._channels = HarmonyReader(
                form.begun,
                splits_reasoning=form.reasoning is not None,
                keeps_reasoning=form.keeps_reasoning,
                reads_calls=form.calls is not None,
            )
            return
        if form.reasoning is not None:
            self._reasoning = ReasoningReader(
                form.reasoning,
                is_begun=form.is_reasoning_begun,
                keeps_tags=form.keeps_reasoning,
                interrupts=form.interrupts,
            )
        if form.calls is not None:
            self._calls = ToolCallReader(form.calls, form.tools)

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain."""
        if self._channels is not None:
            return self._add(self._channels.push(text))
        return self._add(self._split([Content(text)] if self._reasoning is None else self._reasoning.push(text)))

    def flush(self) -> list[Part]:
        """Return what was held back: the reply has ended."""
        if self._channels is not None:
            return self._add(self._channels.flush())
        parts = self._split([] if self._reasoning is None else self._reasoning.flush())
        return self._add([*parts, *([] if self._calls is None else self._calls.flush())])

    def _split(self, parts: Sequence[Part]) -> list[Part]:
        if self._calls is None:
            return list(parts)
        split: list[Part] = []
        for part in parts:
            split += self._calls.push(part.text) if isinstance(part, Content) else [part]
        return split

    def _add(self, parts: Sequence[Part]) -> list[Part]:
        added = joined(parts)
        for part in added:
            self.reply.add(part)
        return added


def read_reply(form: ReplyForm | None, text: str) -> Reply:
    """Return the reply that a whole text is."""
    if form is None:
        return Reply(content=text)
    reader = ReplyReader(form)
    reader.push(text)
    reader.flush()
    return reader.reply
