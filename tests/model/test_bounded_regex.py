"""Expressions mean what they mean to `re`, and none of them can take long."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.bounded_regex import BoundedRegex, Budget, RegexError

LAYER = "model.layers.12.mlp.experts.7.gate_proj"
ATOMS = [
    "a",
    "b",
    ".",
    "\\.",
    "[ab]",
    "[^a]",
    "[a-z_]",
    "\\d",
    "\\w",
    "\\W",
    "\\b",
    "\\B",
    "^",
    "$",
    "(?=a)",
    "(?!a)",
    "1",
    "_",
]


def patterns() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
            inner.map(lambda part: f"({part})"),
            inner.map(lambda part: f"(?!{part})"),
        ),
        max_leaves=8,
    )


@settings(deadline=None, max_examples=400)
@given(patterns(), st.text("ab1_.\n", min_size=1, max_size=8))
def test_an_expression_means_what_it_means_to_re(pattern: str, text: str) -> None:
    assert BoundedRegex(pattern, Budget()).matches(text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(q_proj|gate_proj)",
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\."
        r"(?:mlp|self_attn)\.(?:experts\.\d+\.)?(?:(?:q_proj|gate_proj)))",
        r"^(?!.*(?:vision_tower|projector)).*(?:q_proj|gate_proj).*",
        r"model\.layers\.(1[0-9]|2[0-7])\..+_proj",
        r"(?P<layer>\w+)(\.\w+)*",
    ],
)
def test_what_trainers_write_is_understood(pattern: str) -> None:
    regex = BoundedRegex(pattern, Budget())
    for text in (LAYER, "model.layers.3.self_attn.q_proj", "lm_head", "vision_tower.q_proj"):
        assert regex.matches(text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        "(.+)+x",
        "(.*.*.*)*x",
        ".*" * 30 + "x",
        "(.?)" * 40 + "x",
        "(.|.)*(.|.)*(.|.)*x",
        "((.*)*)*x",
        "(.{0,4000000000}){7}x",
    ],
)
def test_no_expression_takes_long(pattern: str) -> None:
    began = time.perf_counter()
    assert not BoundedRegex(pattern, Budget()).matches(LAYER)
    assert time.perf_counter() - began < 5  # re would need years for most of them


def test_an_expression_that_costs_too_much_over_all_its_texts_is_refused() -> None:
    regex = BoundedRegex(".?" * 4900 + "x", Budget(100_000))
    with pytest.raises(RegexError, match="takes too long"):
        list(map(regex.matches, [LAYER] * 100))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("q_(proj", "is not a regular expression"),
        ("[z-a]", "is not a regular expression"),
        ("a{99999999999999999999}", "is not a regular expression"),
        (r"(a)\1", "groupref"),
        ("(?<=a)b", "looks behind"),
        ("(?i)a", "sets flags"),
        ("(?i:a)", "sets flags"),
        ("(?>a)", "atomic"),
        ("a++", "possessive"),
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
        ("a" * 30_000, "30000 characters"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_understood_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(RegexError, match=reason):
        BoundedRegex(pattern, Budget())
