"""JSON schemas: whatever is chosen among the allowed tokens, a complete text is valid by another implementation."""

import json
import random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.constraints.constraint import Syntax
from tests.model.constraint_parts import allowed_ids, compile_text, make_tokenizer

PIECES = [bytes([byte]) for byte in range(256)] + [b'"}', b'":', b'", "', b"},", b"\n\n", b"true", b"10", b"ab"]
TOKENIZER = make_tokenizer(PIECES)
[END] = TOKENIZER.eog_ids
CLOSING = {PIECES.index(piece) for piece in (b'"', b"}", b"]", b":", b'"}')} | {END}
MAX_TOKENS = 300

Schema = dict[str, object]
NAMES = st.sampled_from(["a", "b b", "c\n", "é", "longer"])
LEAVES: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, *[st.integers(0, 4)] * 2
    ),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-50, 50),
        st.integers(0, 200),
    ),
    st.sampled_from(
        [{"type": "string", "pattern": pattern} for pattern in ("^a+b?$", "^[0-9]{2}-[0-9]{2}$", "^(x|yz)*$")]
    ),
    st.lists(st.sampled_from(["x", 'y"', 5, 1.5, None, True, ["z"], {"k": 1}]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from(["z", 7, {"a": [1]}]).map(lambda value: {"const": value}),
    st.sampled_from([{"type": "string", "format": form} for form in ("date", "uuid", "ipv4")]),
)


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def make(properties: dict[str, Schema], is_required: bool, is_closed: bool) -> Schema:
        schema: Schema = {"type": "object", "properties": properties}
        return (
            schema
            | ({"required": sorted(properties)} if is_required else {})
            | ({"additionalProperties": False} if is_closed else {})
        )

    return st.builds(make, st.dictionaries(NAMES, inner, max_size=3), st.booleans(), st.booleans())


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda items, low, size: {"type": "array", "items": items, "minItems": low, "maxItems": low + size},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def _several(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return _objects(inner) | _arrays(inner) | st.lists(inner, min_size=1, max_size=3).map(lambda all_: {"anyOf": all_})


SCHEMAS = st.recursive(LEAVES, _several, max_leaves=6)
TREE: Schema = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["value", "children"],
        }
    },
}


def generate(schema: Schema, seed: int) -> str | None:
    """Return a text that random choices have made, mostly such as come to an end; None where it has none."""
    chance = random.Random(seed)
    token_filter = compile_text(TOKENIZER, json.dumps(schema), Syntax.JSON_SCHEMA).begin()
    text = b""
    for _ in range(MAX_TOKENS):
        allowed = allowed_ids(token_filter)
        closing = sorted(allowed & CLOSING)
        token_id = chance.choice(closing if closing and chance.random() < 0.6 else sorted(allowed))
        if token_id == END:
            return text.decode()
        token_filter.accept(token_id)
        text += PIECES[token_id]
    return None


def check(schema: Schema, seed: int) -> bool:
    """Check what was generated; tell whether anything was."""
    text = generate(schema, seed)
    if text is None:
        return False
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    checker.validate(json.loads(text))
    return True


@settings(deadline=None, max_examples=80)
@given(SCHEMAS, st.integers(0, 1000))
def test_what_a_schema_allows_is_valid(schema: Schema, seed: int) -> None:
    check(schema, seed)


def test_most_of_it_comes_to_an_end() -> None:
    assert sum(check({"type": "object", "properties": {"a": {"type": "string"}}}, seed) for seed in range(20)) > 10


@pytest.mark.parametrize("seed", range(10))
def test_a_schema_may_need_itself(seed: int) -> None:
    check(TREE, seed)


def test_blanks_are_few() -> None:
    token_filter = compile_text(TOKENIZER, '{"type": "object"}', Syntax.JSON_SCHEMA).begin()
    token_filter.accept(PIECES.index(b"{"))
    token_filter.accept(PIECES.index(b"\n\n"))
    for _ in range(20):
        token_filter.accept(PIECES.index(b" "))
    assert PIECES.index(b" ") not in allowed_ids(token_filter)
    assert PIECES.index(b"}") in allowed_ids(token_filter)
