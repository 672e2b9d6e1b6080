"""The bodies of requests: which fields there are, their types and bounds. null is absent; what the values mean is
decided elsewhere.

Source: llama-server's documented fields, and the fields that OpenAI's clients and load tools send.
"""

import asyncio
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from server import unsupported
from server.constraint_fields import ConstraintFields
from server.errors import BodyInvalid, FieldInvalid
from server.fields import IS_OBJECT, Flag, JsonArray, JsonObject, StopTexts, Text, Texts, flag_or, one_of, real, whole
from server.sampling.fields import SamplerFields
from server.shapes.fields import (
    AdapterList,
    ChatMessage,
    LogitBias,
    Prompt,
    ToolChoice,
    ToolDefinition,
    documented,
)
from server.text_rules import TextRules

log = logging.getLogger(__name__)

MAX_LOGPROBS = 1000
"""A bound, so that one request cannot make every step sort and send the whole vocabulary."""
MAX_PROMPT_LOGPROBS = 20
"""The same of a prompt, whose tokens all come at once."""
MAX_PENALTY = 1e6
"""Larger ones overflow the logits, which would fail the whole step."""
MAX_VALUES = 2**18
"""Bounds the values of a body, before it is parsed: that takes half a microsecond for each at most, during which no
stream goes on, on whichever thread it is done. More tokens than a context holds come from nobody; texts are parsed a
hundred times faster."""
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONG_BODY = 2**17
"""Bytes from which a body is read on a thread: between its parts streams go on."""
MAX_DEPTH = 100
"""Of arrays and objects in each other. Python can read a little more than it can write into a message."""

Body = TypeVar("Body", bound=BaseModel)


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False


class ListFields(BaseModel):
    """How a body chooses its adapter list."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Fields that the route refuses beside those of unsupported.py, and the values at which they ask for nothing."""

    model: Text | None = None
    lora: Annotated[object, documented(AdapterList)] = None
    """Read by the adapter catalog, the one place that knows the rules."""


class GenerationBody(ListFields, SamplerFields, ConstraintFields, ABC):
    """What the generating routes have in common. None: the server's default."""

    n_predict: Annotated[int, whole(-1)] | None = Field(
        None, validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens")
    )
    n: Annotated[int, whole(1)] = Field(1, validation_alias=AliasChoices("n_cmpl", "n"))
    best_of: Annotated[int, whole(1)] | None = None
    stream: Flag = False
    stream_options: Annotated[StreamOptions, IS_OBJECT] = StreamOptions()
    sse_ping_interval: Annotated[int, whole(-1)] | None = None
    """Seconds of silence after which a stream sends a comment; 0 and less: never."""
    return_progress: Flag = False
    verbose: Flag = False
    cache_prompt: Flag = True
    n_keep: Annotated[int, whole(-1)] | None = None
    """Of the prompt, when a full context is shifted; -1: all."""
    n_discard: Annotated[int, whole(0)] = 0
    id_slot: Annotated[int, whole(-1)] = -1
    stop: StopTexts = ()
    stop_token_ids: Annotated[JsonArray, documented(list[int])] = []
    include_stop_str_in_output: Flag = False
    skip_special_tokens: Flag = True
    n_indent: Annotated[int, whole(0)] = 0
    ignore_eos: Flag = False
    min_tokens: Annotated[int, whole(0)] = 0
    logit_bias: Annotated[object, documented(LogitBias)] = None
    t_max_predict_ms: Annotated[int, whole()] = 0
    """Of generation, from the first token on; takes effect once there is a new line. 0 and less: no limit."""
    timings_per_token: Flag = False
    return_tokens: Flag = False
    response_fields: Texts = ()

    temperature: Annotated[float, real()] | None = None
    top_k: Annotated[int, whole()] | None = None
    top_p: Annotated[float, real(0, 1)] | None = None
    min_p: Annotated[float, real(0, 1)] | None = None
    min_keep: Annotated[int, whole(0)] = 0
    repeat_last_n: Annotated[int, whole(-1)] | None = None
    repeat_penalty: Annotated[float, real(1 / MAX_PENALTY, MAX_PENALTY)] | None = Field(
        None, validation_alias=AliasChoices("repeat_penalty", "repetition_penalty")
    )
    presence_penalty: Annotated[float, real(-MAX_PENALTY, MAX_PENALTY)] | None = None
    frequency_penalty: Annotated[float, real(-MAX_PENALTY, MAX_PENALTY)] | None = None
    seed: Annotated[int, whole(-(2**63), 2**64 - 1)] | None = None

    @property
    def text_rules(self) -> TextRules:
        """What the answer shows of its text."""
        return TextRules(
            stop=self.stop,
            keeps_stop=self.include_stop_str_in_output,
            shows_special=not self.skip_special_tokens,
            min_indent=self.n_indent,
            max_generation_ms=max(self.t_max_predict_ms, 0),
        )

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many alternatives each token is to be listed with; None: no log-probabilities at all."""

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same of the prompt's tokens."""
        return None

    @property
    def min_new_tokens(self) -> int:
        """How many tokens are generated at least where none is asked for: one, as in llama-server."""
        return 1


class CompletionBody(GenerationBody):
    """The body of /completion and /v1/completions."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = unsupported.NEUTRAL_WITHOUT_CHAT

    prompt: Annotated[object, documented(Prompt | list[Prompt])] = None
    echo: Flag = False
    suffix: Text = ""
    """Of /v1/completions: what follows the text that is to be filled in."""
    n_probs: Annotated[int, whole(0, MAX_LOGPROBS)] = 0
    logprobs: Annotated[int, whole(0, MAX_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """`n_probs`, where 0 means none; else `logprobs`, where 0 means those of the tokens that come and no others."""
        return self.n_probs or self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """`logprobs`, where the text begins with the prompt. Raises FieldInvalid where that is too many."""
        if not self.echo or self.logprobs is None:
            return None
        if self.logprobs > MAX_PROMPT_LOGPROBS:
            message = f"must be at most {MAX_PROMPT_LOGPROBS} together with echo, but got {self.logprobs}"
            raise FieldInvalid("logprobs", message)
        return self.logprobs

    @property
    def min_new_tokens(self) -> int:
        """None, as in OpenAI's API, where the text is not empty for all that."""
        return 0 if self.echo else 1


class ChatFields(ListFields):
    """What makes a chat prompt: the fields of /apply-template."""

    messages: Annotated[JsonArray, documented(list[ChatMessage])] | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Annotated[bool | str, flag_or("content", "reasoning_content")] = False
    """Of a message that has both, true and `content` continue the content."""
    chat_template_kwargs: JsonObject = {}
    tools: Annotated[JsonArray, documented(list[ToolDefinition])] | None = None
    tool_choice: Annotated[object, documented(ToolChoice)] = None
    parallel_tool_calls: Flag | None = None
    reasoning_effort: Text | None = None
    reasoning_format: Annotated[str, one_of("none", "auto", "deepseek", "deepseek-legacy")] | None = None
    reasoning_budget_tokens: Annotated[int, whole(-1)] = Field(
        -1, validation_alias=AliasChoices("reasoning_budget_tokens", "thinking_budget_tokens")
    )
    """-1: the server's."""
    reasoning_budget_message: Text | None = None


class ChatBody(ChatFields, GenerationBody):
    """The body of /v1/chat/completions."""

    grammar_goes_before_schema: ClassVar[bool] = False
    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {"echo": (False,), "suffix": ("",)}

    logprobs: Flag = False
    top_logprobs: Annotated[int, whole(0, MAX_LOGPROBS)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs`, 20 where only `logprobs` is given. Raises FieldInvalid where it is not."""
        if not self.logprobs:
            if self.top_logprobs:
                raise FieldInvalid("top_logprobs", "top_logprobs requires logprobs to be set to true")
            return None
        return 20 if self.top_logprobs is None else self.top_logprobs


class TokenizeBody(ListFields):
    """The body of /tokenize. `prompt` and `add_special_tokens` are what load tools for vLLM send."""

    content: Annotated[object, documented(Prompt)] = Field(None, validation_alias=AliasChoices("content", "prompt"))
    add_special: Flag = Field(False, validation_alias=AliasChoices("add_special", "add_special_tokens"))
    parse_special: Flag = True
    with_pieces: Flag = False


class DetokenizeBody(ListFields):
    """The body of /detokenize."""

    tokens: Annotated[JsonArray, documented(list[int])] = []


class UnknownFields:
    """Writes one line to the log for each route and field that the server does not know, however often it is sent."""

    MAX_SEEN = 256

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def note(self, route: str, body: Mapping[str, object], schema: type[BaseModel]) -> None:
        """Log the fields of `body` that neither `schema` nor the table of unsupported fields knows."""
        for name in body.keys() - _names(schema) - unsupported.KNOWN:
            if (route, name) not in self._seen and len(self._seen) < self.MAX_SEEN:
                self._seen.add((route, name))
                log.info("%s: the field %r is unknown and ignored", route, name[:64])


def parse(schema: type[Body], body: object) -> Body:
    """Return `body` as a `schema`. Raises BodyInvalid or FieldInvalid."""
    if not isinstance(body, dict):
        raise BodyInvalid("Request body must be an object")
    if issubclass(schema, GenerationBody):
        unsupported.refuse_unsupported(body)
    if issubclass(schema, ListFields):
        unsupported.refuse_unless_neutral(body, schema.neutral_values)
    try:
        return schema.model_validate(_without_nulls(body))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise FieldInvalid(field, first["msg"]) from None


def _without_nulls(body: Mapping[str, object]) -> dict[str, object]:
    present = {name: value for name, value in body.items() if value is not None}
    options = present.get("stream_options")
    if isinstance(options, dict):
        present["stream_options"] = {name: value for name, value in options.items() if value is not None}
    return present


def _names(schema: type[BaseModel]) -> set[str]:
    names = set(schema.model_fields)
    if issubclass(schema, ListFields):
        names.update(schema.neutral_values)
    for field in schema.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            names.update(str(choice) for choice in field.validation_alias.choices)
    return names


async def read_json(request: Request) -> object:
    """Return the body of `request` as a JSON value. Raises BodyInvalid."""
    raw = await request.body()
    return _read_value(raw) if len(raw) < _LONG_BODY else await asyncio.to_thread(_read_value, raw)


def _read_value(raw: bytes) -> object:
    num_openers = _count(raw, b"[{")
    if num_openers + _count(raw, b",") > MAX_VALUES:
        raise BodyInvalid(f"Request body has more than {MAX_VALUES} brackets, braces and commas")
    try:
        value: object = json.loads(raw)
        if _ESCAPED_SURROGATE.search(raw):
            # JSON can escape half a surrogate pair, which no tokenizer and no answer can take.
            json.dumps(value, ensure_ascii=False).encode()
        if num_openers > MAX_DEPTH and _is_deep(value):
            raise BodyInvalid(f"Request body is nested deeper than {MAX_DEPTH} levels")
    except UnicodeError as error:
        raise BodyInvalid(f"Request body is not valid Unicode: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(f"Request body is not valid JSON: {error}") from None
    return value


def _count(raw: bytes, characters: bytes) -> int:
    """Return how often any of some characters comes, a part at a time: other threads go on in between."""
    parts = (raw[start : start + _LONG_BODY] for start in range(0, len(raw), _LONG_BODY))
    return sum(len(part) - len(part.translate(None, characters)) for part in parts)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        children: list[object] = []
        for item in level:
            children += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        level = [child for child in children if isinstance(child, dict | list)]
    return bool(level)


async def read_body(request: Request, schema: type[Body], unknown: UnknownFields) -> Body:
    """Return the body of `request` as a `schema`. Raises BodyInvalid or FieldInvalid."""
    value = await read_json(request)
    body = parse(schema, value)
    if isinstance(value, dict):
        unknown.note(request.url.path, value, schema)
    return body
