"""What a JSON schema without a type describes, where only its keywords tell: an array or an object, as llama.cpp takes
it. By the specification such a schema would allow any value of another type.

Source: JSON Schema 2020-12; llama.cpp's documented conversion of schemas to grammars.
"""

from typing import TypeAlias

Schema: TypeAlias = dict[str, object]

_OTHER_RULES = frozenset({"$ref", "oneOf", "anyOf", "allOf", "const", "enum"})
"""What says by itself which values there are."""
_OF_ARRAYS, _OF_OBJECTS = ("items", "prefixItems"), ("properties",)
_NAMED, _LISTED = ("properties", "$defs", "definitions"), ("prefixItems", "oneOf", "anyOf", "allOf")
_SINGLE = ("items", "additionalProperties")


def with_types(schema: Schema) -> Schema:
    """Return a schema in which each part that is an array or an object by its keywords says so."""
    typed = dict(schema)
    for keyword in _NAMED:
        if isinstance(parts := schema.get(keyword), dict):
            typed[keyword] = {name: _typed(part) for name, part in parts.items()}
    for keyword in _LISTED:
        if isinstance(parts := schema.get(keyword), list):
            typed[keyword] = [_typed(part) for part in parts]
    for keyword in _SINGLE:
        if keyword in schema:
            typed[keyword] = _typed(schema[keyword])
    if "type" not in schema and not _OTHER_RULES & schema.keys():
        if any(keyword in schema for keyword in _OF_ARRAYS):
            typed["type"] = "array"
        elif any(keyword in schema for keyword in _OF_OBJECTS) or isinstance(schema.get("additionalProperties"), dict):
            typed["type"] = "object"
    return typed


def _typed(part: object) -> object:
    return with_types(part) if isinstance(part, dict) else part
