"""The bodies of answers of Anthropic's /v1/messages, whole and in streams. The OpenAPI document is made of these types.

Source: Anthropic's API reference.
"""

from typing import Literal, TypeAlias

from typing_extensions import TypedDict


class TextBlock(TypedDict):
    """The text of a message."""

    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    """What the model thought. The signature is empty."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(TypedDict):
    """A use of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class StopDetails(TypedDict):
    """Why a message ended; null while it has not."""

    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None


class MessagesUsage(TypedDict):
    """The tokens of a message so far; those of the prompt that were computed before are counted apart."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AssistantMessage(StopDetails):
    """A message, whole or as it begins."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[Block]
    model: str
    usage: MessagesUsage


class MessageStart(TypedDict):
    """The message began."""

    type: Literal["message_start"]
    message: AssistantMessage


class ContentBlockStart(TypedDict):
    """A block of it began."""

    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(TypedDict):
    """What a piece of the text adds to it."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """What a piece of thinking adds to it."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """The end of thinking."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    """What a piece of the input of a tool, as JSON, adds to it."""

    type: Literal["input_json_delta"]
    partial_json: str


class ContentBlockDelta(TypedDict):
    """A piece of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class ContentBlockStop(TypedDict):
    """A block ended."""

    type: Literal["content_block_stop"]
    index: int


class MessageDelta(TypedDict):
    """The message ended."""

    type: Literal["message_delta"]
    delta: StopDetails
    usage: MessagesUsage


class SmallEvent(TypedDict):
    """The stream lives, or has ended."""

    type: Literal["ping", "message_stop"]


MessagesFrame: TypeAlias = (
    MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | SmallEvent
)


class MessagesErrorDetails(TypedDict):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorBody(TypedDict):
    """Anthropic's form of every error."""

    type: Literal["error"]
    error: MessagesErrorDetails


class TokenCount(TypedDict):
    """The tokens of a prompt."""

    input_tokens: int
