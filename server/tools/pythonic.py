"""Calls written as in Python, `name(key=value, …)`: LFM2. Values are Python's literals or JSON."""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from server.tools.argument_schema import checked_properties, json_rule, listed_values, types_of, with_definitions
from server.tools.call import Call
from server.tools.fields import Tool
from server.tools.json_object import JsonObject
from server.tools.notation import in_commas, literal
from server.tools.source import Source, Steps

_WORDS = {"boolean": ("True", "False"), "null": ("None",)}
"""Of Python, by the type that they have in JSON."""
_FREE_TEXT = {"type", "title", "description", "default"}
"""What may be said of a string that may be any."""
_SINGLE_QUOTED = r"/'([^'\\\n]|\\['\"\\nt])*'/"


@dataclass(frozen=True, slots=True)
class Pythonic:
    """A name, and arguments by name in parentheses."""

    @property
    def head(self) -> str:
        """Every call begins with its name."""
        return ""

    @property
    def markers(self) -> tuple[str, ...]:
        """There are no words."""
        return ()

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call, which may be a JSON object, too: models write what they are told to. Raises NoCall."""
        if (yield from source.found("{")):
            source.held = "{" + source.held
            yield from JsonObject().read(source, call)
            return
        name, _ = yield from source.until("(")
        call.start(name.strip())
        between = "{"
        yield from source.blank()
        while not (yield from source.found(")")):
            key, _ = yield from source.until("=")
            value = yield from _value(source)
            call.add(f"{between}{json.dumps(key.strip(), ensure_ascii=False)}: {_as_json(value)}")
            between = ", "
            yield from source.found(",")
            yield from source.blank()
        call.add("}" if between == ", " else "{}")

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rules of calls of `tool`, with its arguments in the order of its schema."""
        root = tool.parameters
        properties = checked_properties(tool)
        required = root.get("required")
        rules, parts = {rule: f'{literal(tool.name)} "(" space {rule}_first_0 space ")"'}, []
        for index, (key, schema) in enumerate(properties.items()):
            written = f'{literal(key)} "=" ({" | ".join(_ways(schema, root, f"{rule}_v{index}"))})'
            parts.append((written, isinstance(required, list) and key in required))
            part = schema if isinstance(schema, Mapping) else {}
            rules[f"{rule}_v{index}"] = json_rule(with_definitions(part, root))
        return {**rules, **in_commas(rule, parts, '"," space')}


def _ways(schema: object, root: Mapping[str, object], json_value: str) -> Iterator[str]:
    """Yield the ways to write a value: as JSON, and as Python where it is written differently."""
    yield json_value
    if not isinstance(schema, Mapping):
        return
    if schema.get("type") == "string" and schema.keys() <= _FREE_TEXT:
        yield _SINGLE_QUOTED
    yield from (literal(repr(value)) for value in listed_values(schema) if isinstance(value, str))
    if not schema.keys() & {"enum", "const"}:
        types = types_of(schema, root)
        yield from (literal(word) for name, words in _WORDS.items() if name in types for word in words)


def _value(source: Source) -> Steps[str]:
    """Take a value, up to what ends it."""
    taken, depth, quote, is_escaped = "", 0, "", False
    while True:
        for place, character in enumerate(source.held):
            if quote:
                quote = "" if character == quote and not is_escaped else quote
                is_escaped = character == "\\" and not is_escaped
            elif depth == 0 and character in ",)":
                taken, source.held = taken + source.held[:place], source.held[place:]
                return taken.strip()
            elif character in "\"'":
                quote = character
            else:
                depth += (character in "[{(") - (character in "]})")
        taken, source.held = taken + source.held, ""
        yield


def _as_json(text: str) -> str:
    """Return the JSON that a value means; of what is neither JSON nor Python, its text."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return _python_as_json(text)
    return text


def _python_as_json(text: str) -> str:
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # all that it says of wrong texts
        return json.dumps(text, ensure_ascii=False)
