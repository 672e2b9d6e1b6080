"""How a reply is read: which of its text is reasoning, which is content, and which calls tools.

Decided by the chat template and the request before the first token. A request whose reply is all text has no form, and
then nobody looks into its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.constraint_thinking import Thinking
from model.tokenizer import Tokenizer
from server.replies.parts import Content, Part, Reply, joined
from server.replies.reasoning import ReasoningReader, ReasoningTags
from server.tools.fields import Tool
from server.tools.formats import CallFormat
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

    @property
    def thinking(self) -> Thinking | None:
        """What may come before text that is constrained."""
        tags = self.reasoning
        if tags is None or not (self.may_think or self.is_reasoning_begun):
            return None
        return Thinking(tags.start, tags.end, self.is_reasoning_begun)

    def visible_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the control tokens that mark parts, whose text readers must see."""
        tags = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        markers = (*tags, *(self.calls.markers if self.calls is not None else ()))
        encoded = [tokenizer.encode(marker) for marker in markers]
        ids = {ids[0] for ids in encoded if len(ids) == 1}
        return frozenset(token_id for token_id in ids if tokenizer.is_control(token_id)) - tokenizer.eog_ids


class ReplyReader:
    """Reads one reply whose text comes in pieces. The parts do not depend on how it is cut."""

    def __init__(self, form: ReplyForm) -> None:
        self.reply = Reply()
        """What has come so far."""
        self._reasoning: ReasoningReader | None = None
        if form.reasoning is not None:
            self._reasoning = ReasoningReader(
                form.reasoning, is_begun=form.is_reasoning_begun, keeps_tags=form.keeps_reasoning
            )
        self._calls = None if form.calls is None else ToolCallReader(form.calls, form.tools)

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; return the parts that are certain."""
        return self._add(self._split([Content(text)] if self._reasoning is None else self._reasoning.push(text)))

    def flush(self) -> list[Part]:
        """Return what was held back: the reply has ended."""
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
