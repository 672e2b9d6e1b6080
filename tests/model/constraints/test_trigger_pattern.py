"""Where expressions first match a text that grows: against `re`, whole and token by token."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model.bounded_regex import RegexError
from model.constraints.trigger_pattern import MAX_STEPS, TriggerPattern

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\b", r"\B", "^", "", "(?:ab)", "é"]


def grown(atoms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(atoms, atoms).map("".join),
        st.tuples(atoms, atoms).map("(?:{0[0]}|{0[1]})".format),
        atoms.map("({})".format),
        st.tuples(atoms, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{0,2}", "{1,2}?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


patterns = st.recursive(st.sampled_from(ATOMS), grown, max_leaves=6)
texts = st.lists(st.text("ab\n é", max_size=4), min_size=1, max_size=5)


def first(match: re.Match[str] | None) -> int | None:
    """Where the first group begins that is not empty, or else the match."""
    if match is None:
        return None
    groups = range(1, (match.re.groups or 0) + 1)
    return next((match.start(group) for group in groups if match.end(group) > match.start(group)), match.start())


@settings(deadline=None, max_examples=400)
@given(patterns, texts, st.booleans())
def test_a_match_is_found_as_soon_as_there_is_one_and_where_it_is(
    pattern: str, pieces: list[str], is_whole: bool
) -> None:
    compiled = re.compile(pattern)
    search = TriggerPattern(pattern, is_whole=is_whole).search()
    text = ""
    for piece in pieces:
        text += piece
        match = compiled.fullmatch(text) if is_whole else compiled.search(text)
        assume(match is None or not repeats_a_group(pattern))
        assume(text or r"\B" not in pattern)  # `re` finds none there
        expected = first(match)
        assert search.push(piece) == expected, (pattern, text)
        if expected is not None:
            return


def repeats_a_group(pattern: str) -> bool:
    """Whether `re` may tell of a group what an earlier repetition has left, or stops repeating what is empty."""
    return re.search(r"\)[)]*[*+?{]", pattern) is not None


@pytest.mark.parametrize(
    ("pattern", "is_whole", "pieces", "start"),
    [
        ("<tool>", False, ["say ", "<to", "ol>{"], 4),
        ("x(<t>)y", False, ["..x<", "t>y"], 3),
        (r"(?:<think>[\s\S]*?</think>\s*)?(<tool_call>)[\s\S]*", True, ["<think>a</think>\n", "<tool_call>"], 17),
        (r"(?:<think>[\s\S]*?</think>\s*)?(<tool_call>)[\s\S]*", True, ["no ", "<tool_call>"], None),
        (r"\s+(\{)$", False, ["a {b", " {"], 5),
        ("a(b)?(c)", False, ["ac"], 1),
        ("(a)|(b)", False, ["xb"], 1),
        ("日(本)", False, ["日", "本"], 1),
        ("", False, [""], 0),
        ("a" * 10 + "{2}", False, ["a" * 11], 0),
    ],
)
def test_the_grammar_begins_at_the_first_group(
    pattern: str, is_whole: bool, pieces: list[str], start: int | None
) -> None:
    search = TriggerPattern(pattern, is_whole=is_whole).search()
    *before, last = pieces
    assert [search.push(piece) for piece in before] == [None] * len(before)
    assert search.push(last) == start


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "a{0,30}a{30}b", "(.*)(.*)(.*)(.*)x"])
def test_no_expression_takes_long(pattern: str) -> None:
    assert TriggerPattern(pattern, is_whole=True).search().push("a" * 500) is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression"),
        (r"(a)\1", "uses groupref, which is not supported"),
        ("(?=a)", "uses assert, which is not supported"),
        ("(?i)a", "sets flags"),
        ("(?i:a)", "sets flags"),
        (f"a{{{MAX_STEPS + 1}}}", "is too large"),
        ("(?:(?:(?:a{99}){99}){99}){99}", "is too large"),
        ("(?:(?:(?:){9999}){9999}){9999}", "is too large"),
        ("(" * 3000 + ")" * 3000, "is"),
    ],
)
def test_what_is_not_understood_or_too_large_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(RegexError, match=message):
        TriggerPattern(pattern, is_whole=False)
