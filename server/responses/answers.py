"""The bodies of answers of OpenAI's /v1/responses, whole and in streams. The OpenAPI document is made of these types.

Source: OpenAI's API reference.
"""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from server.fields import JsonArray, JsonObject
from server.shapes.generated_answers import PromptProgress, Timings

ItemStatus = Literal["in_progress", "completed", "incomplete"]


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
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    """What the model thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    """The thinking of a response."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[object]
    content: list[ReasoningText]


class FunctionCall(TypedDict):
    """A call of a function, with its arguments as JSON."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem: TypeAlias = ReasoningItem | OutputMessage | FunctionCall


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


class TextConfig(TypedDict):
    """How a response's text is formed."""

    format: JsonObject


class ReasoningUsed(TypedDict):
    """How the model was asked to think."""

    effort: str | None
    summary: str | None


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
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: ReasoningUsed
    store: Literal[False]
    temperature: float
    text: TextConfig
    tool_choice: Literal["none", "auto", "required"] | JsonObject
    tools: JsonArray
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    timings: NotRequired[Timings]
    """llama-server's, where `timings_per_token` asks for them."""


class ResponseEvent(TypedDict):
    """The response began or ended."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.failed",
    ]
    response: Response
    sequence_number: int
    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[Timings]


class OutputItemEvent(TypedDict):
    """An item began or ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem
    sequence_number: int


class ContentPartEvent(TypedDict):
    """The text of a message or of thinking began or ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText
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
    timings: NotRequired[Timings]


class OutputTextDone(TypedDict):
    """The whole text."""

    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[object]
    sequence_number: int


class ReasoningTextDelta(TypedDict):
    """A piece of thinking."""

    type: Literal["response.reasoning_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    sequence_number: int


class ReasoningTextDone(TypedDict):
    """The whole thinking."""

    type: Literal["response.reasoning_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    sequence_number: int


class ArgumentsDelta(TypedDict):
    """A piece of the arguments of a call."""

    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str
    sequence_number: int


class ArgumentsDone(TypedDict):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str
    sequence_number: int


ResponsesFrame: TypeAlias = (
    ResponseEvent
    | OutputItemEvent
    | ContentPartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)
