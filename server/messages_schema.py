"""The bodies of Anthropic's Messages API, and the chat messages that they make.

Source: Anthropic's API reference. Sampling fields that it doesn't have are those of every generating route. Blocks of
text may carry `cache_control`: prompts are cached without being asked to.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from server.chat import read_text
from server.constraint_fields import Source, format_sources
from server.errors import FieldInvalid
from server.field_shapes import ChatMessage, OutputConfig, TextFormat, TextPart, documented
from server.fields import JsonArray, JsonObject, Texts, json_type, whole
from server.schemas import ChatFields, GenerationBody, ListFields
from server.unsupported import NEUTRAL_FOR_ONE_TEXT

_ROLES = ("user", "assistant")


class MessagesFields(ListFields):
    """What makes a prompt: the body of /v1/messages/count_tokens."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "context_management": (),
        "mcp_servers": ([],),
        "thinking": ({"type": "disabled"},),
        "tool_choice": (),
        "tools": ([],),
    }

    messages: Annotated[JsonArray, documented(list[ChatMessage])] = Field([])
    system: Annotated[object, documented(str | list[TextPart])] = None
    chat_template_kwargs: JsonObject = Field({})


class MessagesBody(MessagesFields, GenerationBody):
    """The body of /v1/messages."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **NEUTRAL_FOR_ONE_TEXT,
        **MessagesFields.neutral_values,
        "stream_options": ({}, {"include_usage": True}),
    }

    n_predict: Annotated[int, whole(1)] = Field(validation_alias=AliasChoices("max_tokens"))
    stop: Texts = Field((), validation_alias=AliasChoices("stop_sequences"))
    output_format: Annotated[object, documented(TextFormat)] = Field(None)
    output_config: Annotated[JsonObject, documented(OutputConfig)] = Field({})

    def constraint_sources(self) -> Iterator[Source]:
        """Those of every generating route, and the format of the output. Raises FieldInvalid."""
        unknown = self.output_config.keys() - {"format"}
        if unknown:
            raise FieldInvalid(f"output_config.{min(unknown)[:64]}", "is not supported")
        yield from super().constraint_sources()
        yield from format_sources(self.output_format, "output_format")
        yield from format_sources(self.output_config.get("format"), "output_config.format")

    @property
    def num_logprobs(self) -> int | None:
        """None: this API has no log-probabilities."""
        return None


def messages_chat(body: MessagesFields) -> ChatFields:
    """Return the conversation that `body` asks to be answered, with the system's text as its first message. Raises
    FieldInvalid.
    """
    if not body.messages:
        raise FieldInvalid("messages", "at least one message is required")
    messages: list[object] = []
    if body.system is not None:
        messages.append({"role": "system", "content": read_text(body.system, "system")})
    messages += [_read_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    return ChatFields(messages=messages, chat_template_kwargs=body.chat_template_kwargs)


def _read_message(message: object, field: str) -> dict[str, object]:
    if not isinstance(message, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(message)}")
    role = message.get("role")
    if role not in _ROLES:
        raise FieldInvalid(f"{field}.role", f"must be one of {', '.join(_ROLES)}, but got {role!r}")
    return {"role": role, "content": read_text(message.get("content"), f"{field}.content")}
