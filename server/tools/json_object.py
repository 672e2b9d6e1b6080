"""Calls that are JSON objects with the name and the arguments: Hermes, Qwen, Llama 3, Command R, Granite and others."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from server.tools.argument_schema import arguments_schema, json_rule
from server.tools.call import Call
from server.tools.fields import Tool
from server.tools.notation import literal
from server.tools.source import NoCall, Source, Steps

_ARGUMENTS_KEYS = ("arguments", "parameters")
"""What models call the arguments. They mix these up, so both are read everywhere."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object. What else is in it is read over."""

    arguments_key: str = "arguments"
    name_key: str = "name"
    id_key: str = ""
    """Where models write an id."""
    id_length: int = 0
    """Of such an id, which then comes last; 0: it is a number, and comes first."""

    @property
    def head(self) -> str:
        """What every call begins with."""
        return "{"

    @property
    def markers(self) -> tuple[str, ...]:
        """There are no words."""
        return ()

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call. Raises NoCall."""
        yield from source.expect("{")
        arguments: str | None = None
        is_more = True
        while is_more:
            key = yield from self._key(source)
            if key in _ARGUMENTS_KEYS:
                arguments = yield from _arguments(source, call)
            else:
                value = yield from source.json()
                if key == self.name_key and not call.has_started:
                    call.start(_text_of(value))
                    call.add(arguments or "")
            yield from source.blank()
            is_more = (yield from source.expect(",", "}")) == ","
        if not call.has_started:
            raise NoCall
        if arguments is None:
            call.add("{}")

    def _key(self, source: Source) -> Steps[str]:
        yield from source.blank()
        yield from source.expect('"')
        key, _ = yield from source.until('"')
        yield from source.blank()
        yield from source.expect(":")
        return key

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rules of calls of `tool`."""
        members = [(self.name_key, literal(json.dumps(tool.name))), (self.arguments_key, f"{rule}_arguments")]
        written = [f'{literal(json.dumps(key))} ":" space {value}' for key, value in members]
        text = ' "," space '.join(written)
        if self.id_length:
            text += f' ("," space {literal(json.dumps(self.id_key))} ":" space /"[a-zA-Z0-9]{{{self.id_length}}}"/)?'
        elif self.id_key:
            text = f'({literal(json.dumps(self.id_key))} ":" space /"[0-9]{{1,3}}"/ "," space)? {text}'
        return {
            rule: f'"{{" space {text} space "}}"',
            f"{rule}_arguments": json_rule(arguments_schema(tool.parameters)),
        }


def _arguments(source: Source, call: Call) -> Steps[str]:
    """Read the arguments and show them, once it is known whose they are. They may be the text of a JSON string."""
    text = yield from source.json(call.add if call.has_started else None)
    if not text.startswith('"'):
        return text
    inner = _unquoted(text)
    if call.has_started:
        call.add(inner)
    return inner


def _text_of(value: str) -> str:
    if not value.startswith('"'):
        raise NoCall
    return _unquoted(value)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # a wrong escape
        return text.strip('"')
