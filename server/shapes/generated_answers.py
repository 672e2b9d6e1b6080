"""The bodies of generated answers, whole and in streams: llama-server's form and OpenAI's two. The OpenAPI document is
made of these types.

Source: llama-server's documented answers, OpenAI's API reference.
"""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(TypedDict):
    """A token that might have come."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    """A token that came, with the most likely ones at its place."""

    top_logprobs: list[TopLogprob]


class TopProb(TypedDict):
    """A token that the samplers have left."""

    id: int
    token: str
    bytes: list[int]
    prob: float


class TokenProb(TopProb):
    """A token that came, with the most likely of those that the samplers have left: `post_sampling_probs`."""

    top_probs: list[TopProb]


class Timings(TypedDict):
    """What prompt and generation took."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class PromptProgress(TypedDict):
    """How much of a prompt is computed."""

    total: int
    cache: int
    processed: int
    time_ms: float


class CompletionPiece(TypedDict):
    """A piece of a native stream; one of progress has no text."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[list[TokenLogprob] | list[TokenProb]]
    prompt_progress: NotRequired[PromptProgress]


class CompletionResult(TypedDict):
    """A native answer, or the last frame of its stream; `response_fields` leaves only what it names."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, object]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["none", "eos", "word", "limit"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: NotRequired[list[TokenLogprob] | list[TokenProb]]


CompletionAnswer: TypeAlias = CompletionResult | list[CompletionResult] | dict[str, object]
"""One, or one for each prompt and choice, or what `response_fields` leaves of it."""
CompletionFrame: TypeAlias = CompletionPiece | CompletionResult | dict[str, object]


class PromptTokensDetails(TypedDict):
    """What of the prompts was computed before."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """What of the answers is thinking."""

    reasoning_tokens: int


class Usage(TypedDict):
    """The tokens of all choices."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class Logprobs(TypedDict):
    """The tokens of a choice."""

    content: list[TokenLogprob] | list[TokenProb]


class LogprobLists(TypedDict):
    """Tokens as parallel lists; the first of a prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextLogprobs(Logprobs):
    """The tokens of a text; where `logprobs` asked for them also in OpenAI's lists, which an echoed prompt is in."""

    tokens: NotRequired[list[str]]
    token_logprobs: NotRequired[list[float | None]]
    top_logprobs: NotRequired[list[dict[str, float] | None]]
    text_offset: NotRequired[list[int]]


Verbose = TypedDict("Verbose", {"__verbose": NotRequired[CompletionAnswer | CompletionPiece]})
"""The same in the native form, for `verbose`."""


class Envelope(Verbose):
    """What every OpenAI answer and chunk carries."""

    created: int
    model: str
    system_fingerprint: str
    id: str


class TextChoice(TypedDict):
    """A text, or a piece of it."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextChunk(Envelope):
    """A chunk of a streamed text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]


class TextCompletion(Envelope):
    """A text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage
    timings: Timings


class CalledFunction(TypedDict):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(TypedDict):
    """An assistant's message."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One answer of a chat."""

    finish_reason: FinishReason
    index: int
    message: Message
    logprobs: NotRequired[Logprobs]


class ChatCompletion(Envelope):
    """An answer of a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class FunctionDelta(TypedDict):
    """What a chunk adds to a call: its name at the beginning, pieces of its arguments later."""

    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """A call that begins or goes on."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class Delta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChunkChoice(TypedDict):
    """What a chunk adds to one answer."""

    finish_reason: FinishReason | None
    index: int
    delta: Delta
    logprobs: NotRequired[Logprobs]


class ChatChunk(Envelope):
    """A chunk of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
