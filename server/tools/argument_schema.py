"""Schemas of arguments: what an object of them may be, and which types of JSON one of them can have."""

import json
from collections.abc import Mapping

from model.constraints.constraint import schema_with_whitespace
from server.errors import FieldInvalid
from server.fields import json_type
from server.tools.fields import Tool

_ALL_TYPES = frozenset({"string", "number", "boolean", "null", "object", "array"})
_MAX_DEPTH = 16
_DEFINITIONS = ("$defs", "definitions")


def arguments_schema(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schema of a tool's arguments, which are an object, with no properties but those that it names."""
    schema = {"type": "object", **parameters}
    return schema if "properties" not in schema else {"additionalProperties": False, **schema}


def json_rule(schema: Mapping[str, object]) -> str:
    """Return what of llguidance's rules asks for JSON that fits a schema."""
    return f"%json {schema_with_whitespace(json.dumps(schema))}"


def checked_properties(tool: Tool) -> Mapping[str, object]:
    """Return the schemas of a tool's arguments by name. Raises FieldInvalid where they are no object."""
    kind = tool.parameters.get("type", "object")
    if kind != "object":
        raise FieldInvalid("tools", f"the arguments of {tool.name!r} must be an object, but are {kind!r:.99}")
    return property_schemas(tool.parameters)


def property_schemas(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schemas of the arguments by name."""
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def listed_values(schema: object) -> list[object]:
    """Return the only values that a schema allows, nothing where it lists none."""
    if not isinstance(schema, Mapping):
        return []
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else []


def with_definitions(schema: Mapping[str, object], root: Mapping[str, object]) -> Mapping[str, object]:
    """Return a part of the schema `root` so that it stands alone."""
    return {**{key: root[key] for key in _DEFINITIONS if key in root}, **schema}


def types_of(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """Return the types of JSON that a part of the schema `root` allows, at least those; whole numbers are numbers."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return _ALL_TYPES
    types = _named_types(schema.get("type"))
    if "const" in schema:
        types &= {json_type(schema["const"])}
    if isinstance(values := schema.get("enum"), list):
        types &= {json_type(value) for value in values}
    if isinstance(reference := schema.get("$ref"), str):
        types &= types_of(_resolved(reference, root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list) and parts:
            types &= frozenset().union(*(types_of(part, root, depth + 1) for part in parts))
    if isinstance(parts := schema.get("allOf"), list):
        types = types.intersection(*(types_of(part, root, depth + 1) for part in parts))
    return types


def _named_types(names: object) -> frozenset[str]:
    if names is None:
        return _ALL_TYPES
    listed = names if isinstance(names, list) else [names]
    return frozenset("number" if name == "integer" else str(name) for name in listed)


def _resolved(reference: str, root: Mapping[str, object]) -> object:
    """Return what a reference within the schema means, None where it leads nowhere."""
    found: object = root
    for key in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
