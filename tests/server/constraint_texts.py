"""Random grammars, schemas and regular expressions: sound ones, and such that something was done to."""

import json

from hypothesis import strategies as st

NAMES = ("root", "a", "b", "c-d")
CHARACTERS = 'abz019 -_.,:|*+?()[]{}"\\/\n\u00e9\U0001f600^$%&=~#'
characters = st.sampled_from(CHARACTERS)


def repeated(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Items with or without a quantifier."""
    bounds = st.tuples(st.integers(0, 4), st.integers(0, 200)).map(lambda pair: f"{{{min(pair)},{max(pair)}}}")
    quantifiers = st.one_of(st.sampled_from(["", "", "", "*", "+", "?", "{3}", "{2,}", "*?"]), bounds)
    return st.tuples(items, quantifiers).map("".join)


def alternatives(items: st.SearchStrategy[str], between: str) -> st.SearchStrategy[str]:
    """Sequences of items, and a choice of such."""
    sequences = st.lists(repeated(items), max_size=4).map(between.join)
    return st.lists(sequences, min_size=1, max_size=3).map("|".join)


literals = st.text(st.sampled_from("abz01 \u00e9"), max_size=4).map(json.dumps)
classes = st.sampled_from(["[a-z]", "[^a]", "[0-9a-fA-F]", "[ \\t\\n]", "[\\x41-\\u00ff]", "[^\\]\\\\]"])
gbnf_items = st.recursive(
    st.one_of(literals, classes, st.sampled_from([*NAMES, "."])),
    lambda items: alternatives(items, " ").map(lambda text: f"({text})"),
    max_leaves=6,
)
grammars = st.tuples(*(alternatives(gbnf_items, " ") for _ in NAMES)).map(
    lambda rules: "\n".join(f"{name} ::= {rule}" for name, rule in zip(NAMES, rules, strict=True))
)
regexes = st.recursive(
    st.one_of(
        st.text(st.sampled_from("abz01 \u00e9"), max_size=3),
        classes,
        st.sampled_from(
            [".", "\\d", "\\w+", "\\s", "^", "$", "\\b", "\\1", "\\p{L}", "(?=a)", "(?i)", "\\x{41}", "[[:alpha:]]"]
        ),
    ),
    lambda items: st.tuples(st.sampled_from(["(", "(?:", "(?P<n>", "(?!"]), alternatives(items, "")).map(
        lambda pair: f"{''.join(pair)})"
    ),
    max_leaves=8,
)
_values = st.one_of(st.none(), st.booleans(), st.integers(-5, 300), st.floats(-9, 9), st.text(characters, max_size=4))
_TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_REFERENCES = ("#", "#/$defs/a", "#/properties/a", "http://nowhere/x", "#/nothing")
_plain_schemas = st.one_of(
    st.booleans(),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])}
    ),
    st.fixed_dictionaries({"enum": st.lists(_values, max_size=3)}),
    st.fixed_dictionaries({"const": _values}),
    st.fixed_dictionaries({"type": st.just("string"), "pattern": regexes}),
    st.fixed_dictionaries({"type": st.just("string"), "format": st.sampled_from(["date", "uuid", "email", "nobody"])}),
    st.fixed_dictionaries(
        {"type": st.just("integer")}, optional={"minimum": _values, "exclusiveMaximum": _values, "multipleOf": _values}
    ),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": _values, "maxLength": _values}),
    st.fixed_dictionaries(
        {"$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "http://nowhere/x", "#/nothing"])}
    ),
)


def _larger(schemas: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    some = st.lists(schemas, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", '\u00e9 "']), schemas, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": named},
            optional={"required": st.lists(st.sampled_from("abx")), "additionalProperties": schemas, "$defs": named},
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": schemas},
            optional={"minItems": _values, "maxItems": _values, "prefixItems": some},
        ),
        *(st.fixed_dictionaries({name: some}) for name in ("anyOf", "oneOf", "allOf")),
        st.fixed_dictionaries({"not": schemas}),
        st.fixed_dictionaries({"type": st.lists(st.sampled_from(["string", "null", "object", "nobody"]), max_size=3)}),
    )


schemas = st.recursive(_plain_schemas, _larger, max_leaves=8)


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text of which some characters are lost, doubled, or others."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 4)))
        text = (
            text[:start] + draw(st.one_of(st.text(characters, max_size=3), st.just(2 * text[start:end]))) + text[end:]
        )
    return text
