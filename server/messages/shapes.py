"""What fields of Anthropic's Messages API look like, for the OpenAPI document alone."""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from server.shapes.fields import TextPart


class ThinkingPart(TypedDict):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str]


class ToolUsePart(TypedDict):
    """A call in an earlier message of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class ToolResultPart(TypedDict):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: NotRequired[str | list[TextPart] | None]
    is_error: NotRequired[bool]


MessagePart: TypeAlias = TextPart | ThinkingPart | ToolUsePart | ToolResultPart


class MessagesMessage(TypedDict):
    """A message; `server/messages/blocks.py` reads it."""

    role: Literal["user", "assistant"]
    content: str | list[MessagePart]


class MessagesTool(TypedDict):
    """A tool."""

    type: NotRequired[Literal["custom"] | None]
    name: str
    description: NotRequired[str | None]
    input_schema: NotRequired[dict[str, object] | None]


class MessagesToolChoice(TypedDict):
    """Whether a tool must be called; `name` goes with the type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: NotRequired[str]
    disable_parallel_tool_use: NotRequired[bool]


class ThinkingTurns(TypedDict):
    """The latest turns in which the assistant thought."""

    type: Literal["thinking_turns"]
    value: int


class ForgetThoughts(TypedDict):
    """Leave out what the assistant thought, but for the latest turns."""

    type: Literal["clear_thinking_20251015"]
    keep: NotRequired[Literal["all"] | ThinkingTurns]


class ContextManagement(TypedDict):
    """What is left out of a conversation; `server/messages/context.py` reads it."""

    edits: NotRequired[list[ForgetThoughts] | None]


class Thinking(TypedDict):
    """Whether the model is to think, and at most how long."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: NotRequired[int]
