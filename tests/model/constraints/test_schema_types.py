"""Parts of a schema that are arrays or objects by their keywords say so, and nothing else changes."""

import pytest

from model.constraints.schema_types import Schema, with_types


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"items": {}}, "array"),
        ({"prefixItems": [{"type": "string"}]}, "array"),
        ({"properties": {"a": {}}}, "object"),
        ({"additionalProperties": {"type": "string"}}, "object"),
        ({"additionalProperties": True}, None),
        ({}, None),
        ({"minLength": 3}, None),
        ({"items": {}, "anyOf": [{"type": "string"}]}, None),
        ({"items": {}, "enum": [1]}, None),
        ({"properties": {}, "type": ["object", "null"]}, ["object", "null"]),
    ],
)
def test_keywords_tell_the_type_where_there_is_none(schema: Schema, wanted: object) -> None:
    before = repr(schema)
    assert with_types(schema).get("type") == wanted
    assert repr(schema) == before


def test_all_parts_of_a_schema_are_looked_at() -> None:
    part, typed = {"items": {"type": "integer"}}, {"items": {"type": "integer"}, "type": "array"}
    schema: Schema = {
        "type": "object",
        "properties": {"a": part, "b": True},
        "$defs": {"c": part},
        "anyOf": [part, {"properties": {"d": part}}],
        "additionalProperties": part,
        "default": part,
    }
    assert with_types(schema) == {
        "type": "object",
        "properties": {"a": typed, "b": True},
        "$defs": {"c": typed},
        "anyOf": [typed, {"properties": {"d": typed}, "type": "object"}],
        "additionalProperties": typed,
        "default": part,
    }
