"""Masks against a plain reference, and the life of a filter."""

import json
import random
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from model.constraints.constraint import ConstraintCompiler, ConstraintError, ConstraintText, Syntax
from tests.model.constraint_parts import allowed_ids, compile_text, make_tokenizer
from tests.model.grammar_reference import Matcher, Rules, gbnf, grammars

PIECES = [b"a", b"b", "é".encode(), b"\xc3", b"\xa9", b"ab", b"ba", b"aa", b"aab", "bé".encode(), b"\xa9a", b"", b"x"]
TINY = make_tokenizer(PIECES, ("</s>", "<eot>", "<other>"), ("</s>", "<eot>"))
ENDS, OTHER = {13, 14}, 15


def reference(matcher: Matcher, text: bytes) -> set[int]:
    """Return the tokens that may follow `text`."""
    allowed = {token_id for token_id, piece in enumerate(PIECES) if piece and viable(matcher, text + piece)}
    return allowed | ENDS if matcher.matches(text.decode(errors="replace")) else allowed


def viable(matcher: Matcher, text: bytes) -> bool:
    """Whether a matching text begins with these bytes, which may end within é."""
    half = text.endswith(b"\xc3")
    try:
        whole = (text + b"\xa9" * half).decode()
    except UnicodeDecodeError:
        return False
    return matcher.matches(whole) or matcher.can_go_on(whole)


@pytest.mark.parametrize("recursive", [False, True])
def test_a_mask_allows_exactly_what_keeps_the_text_in_the_grammar(recursive: bool) -> None:
    @settings(deadline=None, max_examples=40)
    @given(rules=grammars(recursive=recursive), seed=st.integers(0, 1000))
    def check(rules: Rules, seed: int) -> None:
        matcher = Matcher(rules)
        assume(matcher.is_productive())
        walk(matcher, gbnf(rules), random.Random(seed))

    check()


def walk(matcher: Matcher, grammar: str, chance: random.Random) -> None:
    token_filter = compile_text(TINY, grammar).begin()
    text = b""
    for _ in range(5):
        expected = reference(matcher, text)
        assert allowed_ids(token_filter) == expected, (grammar, text)
        assert token_filter.can_end() == matcher.matches(text.decode(errors="replace"))
        choices = sorted(expected - ENDS)
        if not choices:
            return
        token_id = chance.choice(choices)
        token_filter.accept(token_id)
        text += PIECES[token_id]


@settings(deadline=None, max_examples=40)
@given(st.from_regex(r"\A(?:\(?[ab](?:\*|\+|\?|\{1,2\})?\)?|[ab]\|[ab]){1,4}\Z"), st.integers(0, 1000))
def test_a_regular_expression_means_what_it_means_in_python(pattern: str, seed: int) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        assume(False)
    token_filter = compile_text(TINY, pattern, Syntax.REGEX).begin()
    chance, text = random.Random(seed), b""
    for _ in range(5):
        assert token_filter.can_end() == (compiled.fullmatch(text.decode()) is not None), (pattern, text)
        choices = sorted(allowed_ids(token_filter) - ENDS)
        if not choices:
            return
        token_id = chance.choice(choices)
        token_filter.accept(token_id)
        text += PIECES[token_id]


HOSTILE = {
    "allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{length}}}$"} for length in range(1, 30)],
}


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_compiled() -> None:
    compiler = ConstraintCompiler(cpu_limit_s=0.2)
    with pytest.raises(ConstraintError, match=r"takes more than 0\.2 s to compile"):
        compiler.compile(TINY, ConstraintText(Syntax.JSON_SCHEMA, json.dumps(HOSTILE))).result()
    constraint = compiler.compile(TINY, ConstraintText(Syntax.GBNF, 'root ::= "a"')).result()
    assert allowed_ids(constraint.begin()) == {0}


def test_a_text_is_compiled_once_for_each_vocabulary() -> None:
    compiler, text = ConstraintCompiler(), ConstraintText(Syntax.REGEX, "[ab]+")
    assert compiler.kept(TINY, text) is None
    compiled = [compiler.compile(TINY, text) for _ in range(100)]
    assert len({id(each.result()) for each in compiled}) == 1
    assert compiler.kept(TINY, text) is compiled[0].result()
    other = make_tokenizer([b"b", b"a"])
    assert compiler.kept(other, text) is None
    assert allowed_ids(compiler.compile(other, ConstraintText(Syntax.REGEX, "a")).result().begin()) == {1}


def test_nothing_but_the_end_follows_a_complete_text() -> None:
    token_filter = compile_text(TINY, 'root ::= "ab"').begin()
    token_filter.accept(PIECES.index(b"ab"))
    assert allowed_ids(token_filter) == ENDS
    assert token_filter.can_end()


@pytest.mark.parametrize(
    ("syntax", "text", "message"),
    [
        (Syntax.GBNF, 'root ::= "a', "line 1, column 12: the text ends within quotes"),
        (Syntax.GBNF, "root ::= <[99]>", "token"),
        (Syntax.GBNF, "root ::= <nobody>", "<nobody> is not the text of one token"),
        (Syntax.GBNF, 'root ::= "q"', "the constraint allows no token of the vocabulary"),
        (Syntax.GBNF, "root ::= one\none ::= one", "the constraint allows no token of the vocabulary"),
        (Syntax.REGEX, "(a", "unclosed group"),
        (Syntax.REGEX, "(?=a)b", "look-around"),
        (Syntax.JSON_SCHEMA, "{", "is not JSON"),
        (Syntax.JSON_SCHEMA, "[]", "must be an object"),
        (Syntax.JSON_SCHEMA, '{"type": "hiccup"}', "Invalid type: hiccup"),
        (Syntax.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (Syntax.LARK, "start: nobody", "nobody"),
        (Syntax.GBNF, "#" * (1 << 19), "the limit is"),
    ],
)
def test_what_is_no_constraint_says_why(syntax: Syntax, text: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(message)):
        compile_text(TINY, text, syntax)
