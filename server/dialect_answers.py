"""The bodies of answers of OpenAI's /v1/responses and Anthropic's /v1/messages, whole and in streams. The OpenAPI
document is made of these types.

Source: OpenAI's and Anthropic's API references.
"""

from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from server.fields import JsonArray


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[object]


class OutputMessage(TypedDict):
    """The message of a response."""

    type: Literal["message"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class InputTokensDetails(TypedDict):
    """What of the prompt was computed before."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """What of the answer was not shown."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class TextFormat(TypedDict):
    """What kind of text there is."""

    type: Literal["text"]


class TextConfig(TypedDict):
    """How a response's text is formed."""

    format: TextFormat


class Response(TypedDict):
    """A response, from its beginning to its end."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, None]
    store: Literal[False]
    temperature: float
    text: TextConfig
    tool_choice: Literal["auto"]
    tools: JsonArray
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class ResponseEvent(TypedDict):
    """The response began or ended."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response
    sequence_number: int


class OutputItemEvent(TypedDict):
    """The message began or ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputMessage
    sequence_number: int


class ContentPartEvent(TypedDict):
    """The text of the message began or ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: OutputText
    sequence_number: int


class OutputTextDelta(TypedDict):
    """A piece of the text."""

    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[object]
    sequence_number: int


class OutputTextDone(TypedDict):
    """The whole text."""

    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[object]
    sequence_number: int


ResponsesFrame: TypeAlias = ResponseEvent | OutputItemEvent | ContentPartEvent | OutputTextDelta | OutputTextDone


class TextBlock(TypedDict):
    """The text of a message."""

    type: Literal["text"]
    text: str


class StopDetails(TypedDict):
    """Why a message ended; null while it has not."""

    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"] | None
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
    content: list[TextBlock]
    model: str
    usage: MessagesUsage


class MessageStart(TypedDict):
    """The message began."""

    type: Literal["message_start"]
    message: AssistantMessage


class ContentBlockStart(TypedDict):
    """Its text began."""

    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock


class TextDelta(TypedDict):
    """What a piece of the text adds to it."""

    type: Literal["text_delta"]
    text: str


class ContentBlockDelta(TypedDict):
    """A piece of the text."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta


class ContentBlockStop(TypedDict):
    """The text ended."""

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
