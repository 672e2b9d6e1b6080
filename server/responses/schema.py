"""The body of OpenAI's Responses API, and the chat that it asks to be answered.

Nothing is kept between requests, so whatever refers to an earlier one is refused, and so is what would be stored.
Source: OpenAI's API reference. Sampling fields are those of every generating route.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AliasChoices, BeforeValidator, Field

from server.constraint_fields import Source, format_sources
from server.errors import FieldInvalid
from server.fields import Flag, JsonArray, JsonObject, Text, json_type, refuse, whole
from server.responses.input import read_items
from server.responses.shapes import HostedTool, InputItem, ReasoningWanted, ResponsesTool, ResponsesToolChoice
from server.schemas import ChatFields, GenerationBody
from server.shapes.fields import TextOptions, documented
from server.tools.fields import read_function
from server.unsupported import NEUTRAL_FOR_ONE_TEXT

log = logging.getLogger(__name__)


def _texts_by_name(value: object) -> object:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise refuse("must be an object whose values are strings")
    return value


Metadata: TypeAlias = Annotated[dict[str, str], BeforeValidator(_texts_by_name)]


class ResponsesBody(GenerationBody):
    """The body of /v1/responses."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = NEUTRAL_FOR_ONE_TEXT | {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "include": ([], ["reasoning.encrypted_content"]),
        "max_tool_calls": (),
        "previous_response_id": (),
        "prompt": (),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}, {"include_usage": True}),
        "truncation": ("disabled",),
    }

    n_predict: Annotated[int, whole(-1)] | None = Field(
        None, validation_alias=AliasChoices("max_output_tokens", "n_predict", "max_completion_tokens", "max_tokens")
    )
    input: Annotated[object, documented(str | list[InputItem])] = None
    instructions: Text | None = None
    metadata: Metadata = Field({})
    tools: Annotated[JsonArray, documented(list[ResponsesTool | HostedTool])] = Field([])
    tool_choice: Annotated[object, documented(ResponsesToolChoice)] = None
    parallel_tool_calls: Flag | None = None
    reasoning: Annotated[JsonObject, documented(ReasoningWanted)] = Field({})
    text: Annotated[JsonObject, documented(TextOptions)] = Field({})

    def constraint_sources(self) -> Iterator[Source]:
        """Those of every generating route, and `text.format`. Raises FieldInvalid."""
        unknown = self.text.keys() - {"format", "verbosity"}
        if unknown:
            raise FieldInvalid(f"text.{min(unknown)[:64]}", "is not supported")
        if self.text.get("verbosity") not in (None, "medium"):
            raise FieldInvalid("text.verbosity", f'only "medium" is accepted, but got {self.text["verbosity"]!r:.200}')
        yield from super().constraint_sources()
        yield from format_sources(self.text.get("format"), "text.format")

    @property
    def num_logprobs(self) -> int | None:
        """None: the form of the answer has them, and this server does not fill them in."""
        return None


def responses_chat(body: ResponsesBody) -> ChatFields:
    """Return the conversation that `body` asks to be answered. Raises FieldInvalid."""
    messages: list[object] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    elif isinstance(body.input, list) and body.input:
        messages += read_items(body.input)
    else:
        raise FieldInvalid("input", f"must be a string or an array of items, but is {_nothing_or_type(body.input)}")
    return ChatFields(
        messages=messages,
        tools=list(_read_tools(body.tools)),
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=_effort(body.reasoning),
        reasoning_budget_tokens=-1,
    )


def _nothing_or_type(value: object) -> str:
    return "empty" if value == [] else json_type(value)


def _read_tools(tools: Sequence[object]) -> Iterator[object]:
    """Yield the functions. Tools of other types, which OpenAI runs itself, are none that the model here could call:
    they are left out, as in llama-server, for clients offer them unasked.
    """
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise FieldInvalid(field, f"must be an object, but is {json_type(tool)}")
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise FieldInvalid(f"{field}.type", f"must be a string, but is {json_type(kind)}")
        if kind == "function":
            yield read_function(tool, field, "parameters").as_json()
        else:
            log.debug("%s: a tool of the type %r is left out", field, kind[:64])


def _effort(reasoning: Mapping[str, object]) -> str | None:
    """Return how hard the model is to think. Thinking is given whole, so there are no summaries to choose from."""
    for name in ("summary", "generate_summary"):
        if reasoning.get(name) not in (None, "auto", "concise", "detailed"):
            accepted = '"auto", "concise" or "detailed"'
            raise FieldInvalid(f"reasoning.{name}", f"must be {accepted}, but got {reasoning[name]!r:.200}")
    effort = reasoning.get("effort")
    if not isinstance(effort, str | None):
        raise FieldInvalid("reasoning.effort", f"must be a string, but is {json_type(effort)}")
    return effort
