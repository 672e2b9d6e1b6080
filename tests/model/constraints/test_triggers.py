"""Lazy constraints: masks in free text and behind a trigger, against a plain reference."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.constraints.constraint import ConstraintError, ConstraintText, Syntax
from model.constraints.filter import ConstraintFilter
from model.constraints.triggers import Pattern, Triggers
from model.constraints.vocabulary import ConstraintFailed
from tests.model.constraint_parts import allowed_ids, compile_text, make_tokenizer
from tests.model.grammar_reference import Matcher, Rep, Rules, Seq, gbnf, literal

PIECES = [
    b"a",
    b"b",
    b"<",
    b">",
    b"ab",
    b"<a",
    b"b>",
    b"a>b",
    b"<a>",
    b"<a>b",
    b"<a>bb",
    b"<b>a",
    b"xx",
    b"><a",
    "é".encode(),
]
TOKENIZER = make_tokenizer(PIECES, ("</s>", "<tool>"))
END, TOOL = len(PIECES), len(PIECES) + 1
WORDS = ("<a>", "<b>")
RULES: Rules = {"root": Seq((literal("<a>"), Rep(literal("b"), 2, 4), literal("<b>")))}
OTHER: Rules = {"root": Seq((literal("<"), Rep(literal("ab"), 1, 2), literal(">"), Rep(literal("a"), 0, 1)))}


def beginning(text: bytes, words: tuple[str, ...]) -> str | None:
    """The text from the first trigger on."""
    starts = [start for word in words if (start := text.find(word.encode())) >= 0]
    return text[min(starts) :].decode(errors="replace") if starts else None


def reference(matcher: Matcher, words: tuple[str, ...], text: bytes) -> set[int]:
    """Return the tokens that may follow `text`."""
    held = beginning(text, words)
    allowed = {END} if held is None or matcher.matches(held) else set()
    if held is None:
        allowed.add(TOOL)
    for token_id, piece in enumerate(PIECES):
        fed = beginning(text + piece, words)
        if fed is None or matcher.matches(fed) or matcher.can_go_on(fed):
            allowed.add(token_id)
    return allowed


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(RULES, ("<a>",)), (OTHER, ("<a", "<ab")), (OTHER, ("<",))]), st.integers(0, 10**6))
def test_free_text_goes_on_until_a_trigger_and_then_the_constraint_holds(
    case: tuple[Rules, tuple[str, ...]], seed: int
) -> None:
    rules, words = case
    matcher, chance, text = Matcher(rules), random.Random(seed), b""
    lazy = ConstraintText(Syntax.GBNF, gbnf(rules), Triggers(words))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    for _ in range(12):
        expected = reference(matcher, words, text)
        assert allowed_ids(token_filter) == expected, text
        choices = sorted(expected - {END, TOOL})
        if not choices:
            return
        token_id = chance.choice(choices)
        token_filter.accept(token_id)
        text += PIECES[token_id]


def test_a_trigger_may_be_a_token() -> None:
    lazy = ConstraintText(Syntax.GBNF, 'root ::= <tool> "ab"', Triggers(token_ids=(TOOL,)))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    token_filter.accept(PIECES.index(b"<a>bb"))
    assert TOOL in allowed_ids(token_filter)
    token_filter.accept(TOOL)
    assert allowed_ids(token_filter) == {PIECES.index(b"a"), PIECES.index(b"ab")}


def test_a_preserved_token_is_its_text() -> None:
    lazy = ConstraintText(Syntax.GBNF, 'root ::= "<tool>" "a" "<tool>"', Triggers(("<tool>",)), frozenset({TOOL}))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    token_filter.accept(TOOL)
    token_filter.accept(PIECES.index(b"a"))
    assert allowed_ids(token_filter) == {TOOL, PIECES.index(b"<")}
    token_filter.accept(TOOL)
    assert allowed_ids(token_filter) == {END}


@pytest.mark.parametrize("triggers", [Triggers(("b",)), Triggers(("a", "b")), Triggers(token_ids=(TOOL,))])
def test_a_trigger_with_which_the_constraint_cannot_begin_is_refused(triggers: Triggers) -> None:
    with pytest.raises(ConstraintError, match="cannot begin with the trigger"):
        compile_text(TOKENIZER, ConstraintText(Syntax.GBNF, 'root ::= "a"', triggers))


def say(token_filter: ConstraintFilter, *texts: str) -> None:
    for text in texts:
        assert token_filter.allowed()[PIECES.index(text.encode())]
        token_filter.accept(PIECES.index(text.encode()))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (Pattern("<a>"), ["b", "<", "a>b"]),
        (Pattern("b(<a>)"), ["xx", "b", "<a>b"]),
        (Pattern("[^x]*(<a>)b", is_whole=True), ["é", "<", "a>b"]),
        (Pattern("(?:xx)+(<a>b)", is_whole=True), ["xx", "xx", "<a>b"]),
    ],
)
def test_a_pattern_begins_the_constraint_with_its_group(pattern: Pattern, said: list[str]) -> None:
    lazy = ConstraintText(Syntax.GBNF, gbnf(RULES), Triggers(patterns=(pattern,)))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    say(token_filter, *said)
    assert allowed_ids(token_filter) == {PIECES.index(b"b")}


def test_a_pattern_of_the_whole_text_must_match_it_from_its_beginning() -> None:
    lazy = ConstraintText(Syntax.GBNF, gbnf(RULES), Triggers(patterns=(Pattern("(<a>)", is_whole=True),)))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    say(token_filter, "b", "<a>", "xx")


def test_words_and_patterns_end_free_text_side_by_side() -> None:
    lazy = ConstraintText(Syntax.GBNF, gbnf(RULES), Triggers(("<a>",), (), (Pattern("xx(<)"),)))
    for said in (["b", "<a>", "b"], ["xx", "<", "a", ">"]):
        token_filter = compile_text(TOKENIZER, lazy).begin()
        say(token_filter, *said)
        assert PIECES.index(b"b") in allowed_ids(token_filter)
        assert PIECES.index(b"xx") not in allowed_ids(token_filter)


def test_what_a_pattern_begins_with_and_the_constraint_refuses_is_a_failure() -> None:
    lazy = ConstraintText(Syntax.GBNF, gbnf(RULES), Triggers(patterns=(Pattern("a+"),)))
    token_filter = compile_text(TOKENIZER, lazy).begin()
    say(token_filter, "b", "ab")
    with pytest.raises(ConstraintFailed, match="the constraint refuses 'ab', where it begins"):
        token_filter.allowed()


def test_patterns_that_are_too_large_together_are_refused() -> None:
    lazy = ConstraintText(Syntax.GBNF, gbnf(RULES), Triggers(patterns=(Pattern("a{300}"), Pattern("b{300}"))))
    with pytest.raises(ConstraintError, match="triggers of more than 400 steps together"):
        compile_text(TOKENIZER, lazy)
