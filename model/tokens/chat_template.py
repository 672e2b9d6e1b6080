"""Render chat messages into a prompt with the model's own Jinja template. It must not know of HTTP or of tokens.

The dialect is that of Hugging Face (`apply_chat_template`): Jinja with trim_blocks, lstrip_blocks, loop controls, a
`tojson` that does not escape HTML, `raise_exception`, `strftime_now`, and `{% generation %}` blocks (which mark the
assistant's text for training and change nothing here). A template comes with a checkpoint, so it is a stranger's
program: it runs in Jinja's immutable sandbox, in which nothing that was given to it can be changed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from model.tokens.reply_layout import ReplyLayout, reply_layout

_PROGRAM_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What running a template can raise: Jinja's own, and what operators raise on messages of an unforeseen shape."""


class TemplateError(ValueError):
    """The template does not compile, or refuses these messages, with its own message where it gives one."""


class ChatTemplate:
    """A compiled chat template.

    `special_tokens` are the texts a template may name (`bos_token`, `eos_token`, ...); `tool_use_source` is a second
    template for requests with tools, where the checkpoint has one. Raises TemplateError where one does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        tool_use_source: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.tool_use_source = tool_use_source
        self._special_tokens = dict(special_tokens or {})
        self._now = now
        environment = _environment(now)
        self._template = _compile(environment, source)
        self._tool_use_template = self._template
        if tool_use_source is not None:
            self._tool_use_template = _compile(environment, tool_use_source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt of a conversation; `variables` are the request's `chat_template_kwargs`.

        A message's fields that are None are left out, for templates ask whether a field is there. Raises TemplateError.
        """
        template = self._tool_use_template if tools else self._template
        context: dict[str, object] = {
            **self._special_tokens,
            **self._usual_variables(),
            **(variables or {}),
            "messages": [_without_none(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:  # some templates loop over them without asking whether there are any
            context["tools"] = list(tools)
        try:
            return template.render({name: _given(value) for name, value in context.items()})
        except _PROGRAM_ERRORS as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error

    def _usual_variables(self) -> dict[str, object]:
        """Return what llama-server gives to all templates, and what Hugging Face does. FireFunction's template
        concatenates `functions`.
        """
        now = self._now()
        dates = {"datetime": now.strftime("%b %d %Y"), "date_string": now.strftime("%d %b %Y")}
        return {**dates, "documents": None, "functions": ""}

    @cached_property
    def describes_tools(self) -> bool:
        """Whether a prompt tells the model of the tools of its request."""
        return self._shows(_PROBE, [_USER], tools=[_TOOL])

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether the arguments of an earlier call are given as an object, which becomes JSON; else as JSON text."""
        conversation = [_USER, _calling({"probed_argument": 1})]
        is_bare = self._shows("probed_argument", conversation, [_TOOL])  # as JSON has it, or between tags
        return is_bare and not self._shows("'probed_argument'", conversation, [_TOOL])  # as Python has it

    @cached_property
    def shows_calls(self) -> bool:
        """Whether a prompt has the earlier calls of its conversation and their results."""
        arguments: object = {"a": 1} if self.takes_argument_objects else '{"a": 1}'
        conversation = [_USER, _calling(arguments), _RESULT]
        return all(self._shows(text, conversation, [_TOOL]) for text in ("called", "probed_result"))

    @cached_property
    def takes_system_messages(self) -> bool:
        """Whether a conversation may begin with a system message."""
        return self._shows(_PROBE, [{"role": "system", "content": _PROBE}, _USER])

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the content of a message may be a list of parts, which the template joins in its own way."""
        as_it_is = any(self._shows(key, [_in_parts(_PROBE)]) for key in ("'type'", '"type"'))
        return self._shows(_PROBE, [_in_parts(_PROBE)]) and not as_it_is

    @cached_property
    def needs_parts(self) -> bool:
        """Whether the content of a message must be such a list."""
        return self.takes_parts and not self._shows(_PROBE, [{"role": "user", "content": _PROBE}])

    @cached_property
    def reply_layout(self) -> ReplyLayout:
        """How an assistant's message is written."""

        def render(messages: Sequence[Mapping[str, object]], begins_reply: bool, thinks: bool) -> str | None:
            try:
                return self.render(messages, add_generation_prompt=begins_reply, variables={"enable_thinking": thinks})
            except TemplateError:
                return None

        return reply_layout(render)

    def _shows(
        self, text: str, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] | None = None
    ) -> bool:
        try:
            return text in self.render(messages, tools=tools)
        except TemplateError:
            return False


_PROBE = "probed_name"
"""A word that no template writes by itself: where it is in a prompt, it came with the messages."""
_USER: Mapping[str, object] = {"role": "user", "content": "a"}
_TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}},
}


_RESULT: Mapping[str, object] = {
    "role": "tool",
    "tool_call_id": "123456789",
    "name": "called",
    "content": "probed_result",
}


def _in_parts(text: str) -> Mapping[str, object]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _calling(arguments: object) -> Mapping[str, object]:
    function = {"name": "called", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "123456789", "type": "function", "function": function}],
    }


def _without_none(message: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in message.items() if value is not None}


class _GivenList(list[object]):
    """A list that came with the request: a template must not change it, as it may change its own."""


def _given(value: object) -> object:
    match value:
        case list() | tuple():
            return _GivenList(_given(item) for item in value)
        case dict():
            return {name: _given(item) for name, item in value.items()}
        case _:
            return value


class _Sandbox(ImmutableSandboxedEnvironment):
    """Lets a template add to its own lists and take from them, as those of Kimi K2 do."""

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


def _compile(environment: jinja2.Environment, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    def strftime_now(format: str) -> str:  # noqa: A002 - the name that templates use
        return now().strftime(format)

    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, undefined=_Nothing, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["safe"] = str  # nothing is escaped that it would save
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


class _Nothing(jinja2.ChainableUndefined):
    """What is not there: its fields are not there either, and beside a text it is no text, as in llama-server. What the
    sandbox hides is refused.
    """

    def __getattr__(self, name: str) -> jinja2.ChainableUndefined:
        if self._undefined_exception is SecurityError:
            self._fail_with_undefined_error()
        return super().__getattr__(name)

    def __add__(self, other: object) -> str:  # type: ignore[override]  # the base class always raises
        return other if isinstance(other, str) else self._fail_with_undefined_error()

    def __radd__(self, other: object) -> str:  # type: ignore[override]
        return other if isinstance(other, str) else self._fail_with_undefined_error()


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        default=_listed,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _listed(value: object) -> list[object]:
    if not isinstance(value, Iterator):  # what the filter `map` returns
        raise TypeError(f"{type(value).__name__} is no JSON")
    return list(value)


class _GenerationBlocks(Extension):
    """`{% generation %} ... {% endgeneration %}` renders its body, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
