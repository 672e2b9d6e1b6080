"""The body of OpenAI's Responses API, and the chat messages that it makes.

Nothing is kept between requests, so whatever refers to an earlier one is refused, and so is what would be stored.
Source: OpenAI's API reference. Sampling fields are those of every generating route.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AliasChoices, BeforeValidator, Field

from server.chat import read_text
from server.constraint_fields import Source, format_sources
from server.errors import FieldInvalid
from server.field_shapes import ChatMessage, TextOptions, documented
from server.fields import JsonObject, Text, json_type, refuse, whole
from server.schemas import ChatFields, GenerationBody
from server.unsupported import NEUTRAL_FOR_ONE_TEXT

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Roles of messages, and what chat templates call them."""


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
        "include": ([],),
        "max_tool_calls": (),
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({},),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}, {"include_usage": True}),
        "truncation": ("disabled",),
    }

    n_predict: Annotated[int, whole(-1)] | None = Field(
        None, validation_alias=AliasChoices("max_output_tokens", "n_predict", "max_completion_tokens", "max_tokens")
    )
    input: Annotated[object, documented(str | list[ChatMessage])] = None
    instructions: Text | None = None
    metadata: Metadata = Field({})
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
        messages += [_read_item(item, f"input[{index}]") for index, item in enumerate(body.input)]
    else:
        raise FieldInvalid("input", f"must be a string or an array of items, but is {_nothing_or_type(body.input)}")
    return ChatFields(messages=messages)


def _nothing_or_type(value: object) -> str:
    return "empty" if value == [] else json_type(value)


def _read_item(item: object, field: str) -> dict[str, object]:
    if not isinstance(item, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(item)}")
    if item.get("type", "message") != "message":
        raise FieldInvalid(f"{field}.type", f'only "message" is supported, but got {item["type"]!r}')
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldInvalid(f"{field}.role", f"must be one of {', '.join(_ROLES)}, but got {role!r}")
    content = read_text(item.get("content"), f"{field}.content", ("input_text", "output_text"))
    return {"role": _ROLES[role], "content": content}
