"""Calls whose parameters stand between tags: Qwen3-Coder and its relatives, GLM, MiniMax.

A parameter that its tool's schema says is a string is its text as it stands, any other is JSON. Where it may be either,
it is what JSON of a type that it may have and that is no string says, or else its text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from server.fields import json_type
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
from server.tools.json_end import SPACE
from server.tools.notation import literal
from server.tools.source import Source, Steps

_TEXT = frozenset({"string"})
_MAX_FREE_ORDER = 4
"""Parameters that may come in any order; of a tool with more they come in the order of its schema."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words around a name, and around each key and value."""

    before_name: str
    behind_name: str
    """Empty where the name ends with its line, or with what comes next."""
    before_key: str
    behind_key: str
    behind_value: str
    end: str
    before_value: str = ""
    is_padded: bool = False
    """Whether a new line at each end of a value is layout."""
    json_behind_key: str = ""
    """Stands in the place of `behind_key` where the value is JSON, which `behind_key` then says it is not."""

    @property
    def head(self) -> str:
        """What every call begins with; empty where that is its name."""
        return self.before_name

    @property
    def markers(self) -> tuple[str, ...]:
        """Words in calls that may be tokens of their own."""
        words = (self.before_key, self.behind_key, self.before_value, self.behind_value, self.end)
        return tuple(word for word in words if word)

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call. Raises NoCall."""
        yield from source.blank()
        if self.before_name:
            yield from source.expect(self.before_name)
        name = yield from self._name(source)
        call.start(name)
        tool, between = call.tool(name), "{"
        yield from source.blank()
        while (yield from source.expect(self.before_key, self.end)) == self.before_key:
            ends = (self.behind_key, self.json_behind_key) if self.json_behind_key else (self.behind_key,)
            key, end = yield from source.until(*ends)
            call.add(f"{between}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            yield from self._value(source, call, self._types(tool, key.strip(), end))
            between = ", "
            yield from source.blank()
        call.add("}" if between == ", " else "{}")

    def _name(self, source: Source) -> Steps[str]:
        if self.behind_name:
            name, _ = yield from source.until(self.behind_name)
        else:
            name, end = yield from source.until("\n", self.before_key, self.end)
            source.held = end + source.held
        return name.strip()

    def _types(self, tool: Tool | None, key: str, end: str) -> frozenset[str]:
        if self.json_behind_key:
            return _TEXT if end == self.behind_key else types_of(True, {}) - _TEXT
        root = {} if tool is None else tool.parameters
        return types_of(property_schemas(root).get(key), root)

    def _value(self, source: Source, call: Call, types: frozenset[str]) -> Steps[None]:
        """Read a value and what ends it."""
        if self.before_value:
            yield from source.blank()
            yield from source.expect(self.before_value)
        ends: tuple[str, ...] = (self.behind_value,)
        if self.is_padded:
            yield from source.found("\n")
            ends = ("\n" + self.behind_value, self.behind_value)
        if types == _TEXT:
            call.add('"')
            yield from source.text_until(ends, lambda text: call.add(json.dumps(text, ensure_ascii=False)[1:-1]))
            call.add('"')
        else:
            pieces: list[str] = []
            yield from source.text_until(ends, pieces.append)
            call.add(_as_json("".join(pieces), types))

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rules of calls of `tool`. Raises FieldInvalid where its arguments are no object."""
        root = tool.parameters
        rules: dict[str, str] = {}
        properties = checked_properties(tool)
        for index, (key, schema) in enumerate(properties.items()):
            rules |= self._parameter_rules(key, schema, root, f"{rule}_p{index}")
        required = root.get("required")
        is_required = [isinstance(required, list) and key in required for key in properties]
        rules |= _order_rules(is_required, rule)
        others = ""
        if root.get("additionalProperties", "properties" not in root) is not False:
            others = f" {rule}_other*"
            text, more = self._text_rules(None, f"{rule}_any")
            rules |= {f"{rule}_other": f"{literal(self.before_key)} /[a-zA-Z0-9_.-]+/ {text} space", **more}
        name = literal(self.before_name + tool.name + self.behind_name)
        return {rule: f"{name} space {rule}_order{others} {literal(self.end)}", **rules}

    def _parameter_rules(self, key: str, schema: object, root: Mapping[str, object], rule: str) -> Mapping[str, str]:
        """Return the rule `rule`, a parameter, and those that it is made of."""
        before, types = literal(self.before_key + key), types_of(schema, root)
        rules: dict[str, str] = {}
        ways = []
        if "string" in types:
            text, more = self._text_rules(schema, f"{rule}_text")
            ways.append(text)
            rules |= more
        if isinstance(schema, Mapping) and (_TEXT.isdisjoint(types) or (self.json_behind_key and types != _TEXT)):
            behind_key = self._behind_key(self.json_behind_key or self.behind_key)
            ways.append(f"{behind_key} space {rule}_json space {literal(self.behind_value)}")
            only = schema if _TEXT.isdisjoint(types) else {"allOf": [schema, {"type": sorted(types - _TEXT)}]}
            rules[f"{rule}_json"] = json_rule(with_definitions(only, root))
        return {rule: f"{before} ({' | '.join(ways)}) space", **rules}

    def _text_rules(self, schema: object, rule: str) -> tuple[str, Mapping[str, str]]:
        """Return what may stand between a key and the end of a value that is text, and the rules that it is made of."""
        behind_key = self._behind_key(self.behind_key)
        values = [value for value in listed_values(schema) if isinstance(value, str) or not self.json_behind_key]
        if not values:
            return f"{behind_key} {rule}", self._any_text(rule, schema)
        texts = " | ".join(literal(value if isinstance(value, str) else json.dumps(value)) for value in values)
        pad = ' "\\n"? ' if self.is_padded else " "
        return f"{behind_key}{pad}({texts}){pad}{literal(self.behind_value)}", {}

    def _behind_key(self, behind_key: str) -> str:
        return f"{literal(behind_key)} space {literal(self.before_value)}" if self.before_value else literal(behind_key)

    def _any_text(self, rule: str, schema: object = None) -> Mapping[str, str]:
        """Return the rule of a text and what ends it, which is in the text nowhere."""
        least, most = _lengths(schema)
        pad = "\\n" if self.is_padded else ""
        text = "(?s:.*)" if (least, most) == (0, "") else f"{pad}(?s:.{{{least},{most}}}){pad}"
        return {f"{rule}[suffix={literal(self.behind_value)}]": f"/{text}/"}


def _order_rules(is_required: list[bool], rule: str) -> Mapping[str, str]:
    """Return the rule of all parameters, each at most once, and the required ones: in any order where they are few."""
    indices = range(len(is_required))
    if len(is_required) > _MAX_FREE_ORDER or not is_required:
        each = (f"{rule}_p{index}{'' if is_required[index] else '?'}" for index in indices)
        return {f"{rule}_order": " ".join(each) or '""'}
    rules = {}
    for seen in range(1 << len(is_required)):
        more = [f"{rule}_p{index} {rule}_s{seen | 1 << index}" for index in indices if not seen >> index & 1]
        if all(seen >> index & 1 or not is_required[index] for index in indices):
            more.append('""')
        rules[f"{rule}_s{seen}"] = " | ".join(more)
    return {f"{rule}_order": f"{rule}_s0", **rules}


def _lengths(schema: object) -> tuple[int, str]:
    """Return the bounds of a string's length as regular expressions have them."""
    lengths = [schema.get(key) if isinstance(schema, Mapping) else None for key in ("minLength", "maxLength")]
    least, most = (length if isinstance(length, int) and length >= 0 else None for length in lengths)
    return least or 0, "" if most is None else str(most)


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON that a value's text means where it may have these types."""
    trimmed = text.strip(SPACE)
    try:
        value: object = json.loads(trimmed)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    is_meant = json_type(value) in types and not isinstance(value, str)
    return trimmed if is_meant or "string" not in types else json.dumps(text, ensure_ascii=False)
