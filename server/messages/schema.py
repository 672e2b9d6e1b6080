"""The bodies of Anthropic's Messages API, and the chat that they ask to be answered.

Source: Anthropic's API reference. Sampling fields that it doesn't have are those of every generating route. Blocks may
carry `cache_control`: prompts are cached without being asked to.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from server.constraint_fields import Source, format_sources
from server.errors import FieldInvalid
from server.fields import MAX_INT32, JsonArray, JsonObject, StopTexts, json_type, whole
from server.messages.blocks import read_message, read_text
from server.messages.context import forget_thoughts, num_kept_thoughts
from server.messages.shapes import ContextManagement, MessagesMessage, MessagesTool, MessagesToolChoice, Thinking
from server.schemas import ChatFields, GenerationBody, ListFields
from server.shapes.fields import OutputConfig, TextFormat, TextPart, documented
from server.tools.fields import read_function
from server.unsupported import NEUTRAL_FOR_ONE_TEXT

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesFields(ListFields):
    """What makes a prompt: the body of /v1/messages/count_tokens."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "container": (),
        "mcp_servers": ([],),
    }

    messages: Annotated[JsonArray, documented(list[MessagesMessage])] | None = None
    system: Annotated[object, documented(str | list[TextPart])] = None
    chat_template_kwargs: JsonObject = Field({})
    tools: Annotated[JsonArray, documented(list[MessagesTool])] = Field([])
    tool_choice: Annotated[JsonObject, documented(MessagesToolChoice)] | None = None
    thinking: Annotated[JsonObject, documented(Thinking)] | None = None
    output_config: Annotated[JsonObject, documented(OutputConfig)] = Field({})
    context_management: Annotated[JsonObject, documented(ContextManagement)] | None = None


class MessagesBody(MessagesFields, GenerationBody):
    """The body of /v1/messages."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **NEUTRAL_FOR_ONE_TEXT,
        "return_progress": (False,),
        "timings_per_token": (False,),
        **MessagesFields.neutral_values,
        "stream_options": ({}, {"include_usage": True}),
    }

    n_predict: Annotated[int, whole(1)] = Field(validation_alias=AliasChoices("max_tokens"))
    stop: StopTexts = Field((), validation_alias=AliasChoices("stop_sequences"))
    output_format: Annotated[object, documented(TextFormat)] = Field(None)

    def constraint_sources(self) -> Iterator[Source]:
        """Those of every generating route, and the format of the output. Raises FieldInvalid."""
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
    if body.messages is None:
        raise FieldInvalid("messages", "'messages' is required")
    messages: list[object] = []
    if body.system is not None:
        messages.append({"role": "system", "content": read_text(body.system, "system")})
    for index, message in enumerate(body.messages):
        messages += read_message(message, f"messages[{index}]")
    choice = body.tool_choice or {"type": "auto"}
    return ChatFields(
        messages=forget_thoughts(messages, num_kept_thoughts(body.context_management)),
        chat_template_kwargs={**body.chat_template_kwargs, **_thinking_wanted(body.thinking)},
        tools=[_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools)],
        tool_choice=_read_choice(choice),
        parallel_tool_calls=not _is_single(choice),
        reasoning_effort=_effort(body.output_config),
        reasoning_budget_tokens=-1 if body.thinking is None else _budget(body.thinking),
    )


def _effort(output_config: Mapping[str, object]) -> str | None:
    """Return how hard the model is to think: what OpenAI calls `reasoning_effort`."""
    unknown = output_config.keys() - {"format", "effort"}
    if unknown:
        raise FieldInvalid(f"output_config.{min(unknown)[:64]}", "is not supported")
    effort = output_config.get("effort")
    if not isinstance(effort, str | None):
        raise FieldInvalid("output_config.effort", f"must be a string, but is {json_type(effort)}")
    return effort


def _read_tool(tool: object, field: str) -> object:
    if not isinstance(tool, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(tool)}")
    if tool.get("type", "custom") not in ("custom", None):
        raise FieldInvalid(f"{field}.type", f'only "custom" is supported, but got {tool["type"]!r}')
    return read_function(tool, field, "input_schema").as_json()


def _read_choice(choice: Mapping[str, object]) -> object:
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    if isinstance(kind, str) and kind in _CHOICES:
        return _CHOICES[kind]
    raise FieldInvalid(
        "tool_choice", f"must have the type auto, any, none, or tool with a name, but got {dict(choice)!r:.200}"
    )


def _is_single(choice: Mapping[str, object]) -> bool:
    value = choice.get("disable_parallel_tool_use")
    if not isinstance(value, bool | None):
        raise FieldInvalid("tool_choice.disable_parallel_tool_use", f"must be a boolean, but is {json_type(value)}")
    return bool(value)


def _budget(thinking: Mapping[str, object]) -> int:
    """Return how many tokens the model may think for; -1: the server's limit."""
    num_tokens = thinking.get("budget_tokens")
    if num_tokens is None or thinking.get("type") == "disabled":
        return -1
    if not isinstance(num_tokens, int) or isinstance(num_tokens, bool) or not 0 <= num_tokens <= MAX_INT32:
        raise FieldInvalid("thinking.budget_tokens", f"must be a whole number, at least 0, but got {num_tokens!r:.200}")
    return num_tokens


def _thinking_wanted(thinking: Mapping[str, object] | None) -> dict[str, object]:
    """Return what the template is told."""
    if thinking is None:
        return {}
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise FieldInvalid("thinking.type", f"must be enabled, adaptive or disabled, but got {kind!r}")
    return {"enable_thinking": kind != "disabled"}
