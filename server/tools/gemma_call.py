"""Calls as Gemma 4 writes them, `call:name{key:value}`: like JSON, but for bare keys and a token that quotes texts."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from server.tools.argument_schema import (
    checked_properties,
    json_rule,
    listed_values,
    property_schemas,
    types_of,
    with_definitions,
)
from server.tools.call import Call
from server.tools.fields import Tool
from server.tools.notation import in_commas, literal
from server.tools.source import NoCall, Source, Steps

_QUOTE = '<|"|>'
_MAX_DEPTH = 64
_MAX_SCHEMA_DEPTH = 8
_SCALARS = frozenset({"number", "boolean", "null"})
_ANY = "gemma_any"
_Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GemmaCall:
    """`call:`, the name, and the arguments in braces."""

    @property
    def head(self) -> str:
        """What every call begins with."""
        return "call:"

    @property
    def markers(self) -> tuple[str, ...]:
        """The quote."""
        return (_QUOTE,)

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call. Raises NoCall."""
        yield from source.blank()
        yield from source.expect(self.head)
        name, _ = yield from source.until("{")
        call.start(name.strip())
        yield from _members(source, call.add, 0)

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rules of calls of `tool`, with its arguments in the order of their names, as the template has
        them. Raises FieldInvalid where they are no object.
        """
        checked_properties(tool)
        members = _object_rules(tool.parameters, tool.parameters, f"{rule}_arguments", 0)
        return {rule: f"{literal(self.head + tool.name)} {rule}_arguments", **members, **_any_rules()}


def _value(source: Source, show: _Show, depth: int) -> Steps[None]:
    """Read a value, and show the JSON that it means."""
    if depth > _MAX_DEPTH:
        raise NoCall
    yield from source.blank()
    match (yield from source.found(_QUOTE, "{", "[")):
        case "{":
            yield from _members(source, show, depth)
        case "[":
            yield from _items(source, show, depth)
        case "":
            word, end = yield from source.until(",", "}", "]")
            source.held = end + source.held
            show(_scalar(word.strip()))
        case _:
            show('"')
            yield from source.text_until((_QUOTE,), lambda text: show(json.dumps(text, ensure_ascii=False)[1:-1]))
            show('"')


def _members(source: Source, show: _Show, depth: int) -> Steps[None]:
    between, end = "{", ""
    yield from source.blank()
    end = yield from source.found("}")
    while end != "}":
        yield from source.blank()
        if (yield from source.found(_QUOTE)):
            key, _ = yield from source.until(_QUOTE)
            yield from source.blank()
            yield from source.expect(":")
        else:
            key = (yield from source.until(":"))[0].strip()
        show(f"{between}{json.dumps(key, ensure_ascii=False)}: ")
        between = ", "
        yield from _value(source, show, depth + 1)
        yield from source.blank()
        end = yield from source.expect(",", "}")
    show("{}" if between == "{" else "}")


def _items(source: Source, show: _Show, depth: int) -> Steps[None]:
    show("[")
    yield from source.blank()
    end = yield from source.found("]")
    while end != "]":
        yield from _value(source, show, depth + 1)
        yield from source.blank()
        end = yield from source.expect(",", "]")
        show(", " if end == "," else "")
    show("]")


def _scalar(word: str) -> str:
    try:
        json.loads(word)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word


def _object_rules(schema: Mapping[str, object], root: Mapping[str, object], rule: str, depth: int) -> Mapping[str, str]:
    """Return the rule of an object that fits a part of the schema `root`, and those that it is made of."""
    if "properties" not in schema:
        return {rule: f"{_ANY}_object"}
    required = schema.get("required")
    rules: dict[str, str] = {}
    members = []
    for index, (key, part) in enumerate(sorted(property_schemas(schema).items(), key=lambda item: item[0].lower())):
        name = f"{rule}_{index}"
        rules |= _value_rules(part, root, name, depth + 1)
        written = f"({literal(key)} | {literal(_QUOTE + key + _QUOTE)})" if depth else literal(key)
        members.append((f'{written} ":" {name}', isinstance(required, list) and key in required))
    return {rule: f'"{{" {rule}_m_first_0 "}}"', **in_commas(f"{rule}_m", members, '","'), **rules}


def _value_rules(schema: object, root: Mapping[str, object], rule: str, depth: int) -> Mapping[str, str]:
    types = types_of(schema, root)
    if not isinstance(schema, Mapping) or "$ref" in schema or depth > _MAX_SCHEMA_DEPTH:
        return {rule: _any_of(types)}
    values = listed_values(schema)
    if values and all(isinstance(value, str) or type(value) in (int, float, bool, type(None)) for value in values):
        texts = (_QUOTE + value + _QUOTE if isinstance(value, str) else json.dumps(value) for value in values)
        return {rule: " | ".join(map(literal, texts))}
    if types == {"object"}:
        return _object_rules(schema, root, rule, depth)
    if types == {"array"} and isinstance(schema.get("items"), Mapping):
        items = f'"[" ({rule}_i ("," {rule}_i)*)? "]"'
        return {rule: items, **_value_rules(schema["items"], root, f"{rule}_i", depth + 1)}
    if types <= _SCALARS:
        return {rule: json_rule(with_definitions(schema, root))}
    return {rule: _any_of(types)}


def _any_of(types: Iterable[str]) -> str:
    return " | ".join(f"{_ANY}_{name if name not in _SCALARS else 'scalar'}" for name in sorted(types))


def _any_rules() -> Mapping[str, str]:
    """Return the rules of values of which no more is known than their type."""
    return {
        f"{_ANY}": f"{_ANY}_string | {_ANY}_scalar | {_ANY}_object | {_ANY}_array",
        f"{_ANY}_string": f"{literal(_QUOTE)} {_ANY}_text",
        f"{_ANY}_text[suffix={literal(_QUOTE)}]": "/(?s:.*)/",
        f"{_ANY}_scalar": json_rule({"type": ["number", "boolean", "null"]}),
        f"{_ANY}_object": f'"{{" ({_ANY}_member ("," {_ANY}_member)*)? "}}"',
        f"{_ANY}_member": f'{_ANY}_key ":" {_ANY}',
        f"{_ANY}_key": f"/[a-zA-Z0-9_.-]+/ | {_ANY}_string",
        f"{_ANY}_array": f'"[" ({_ANY} ("," {_ANY})*)? "]"',
    }
