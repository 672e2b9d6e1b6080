"""Which tokens break a repetition: those that hold the text, and those that begin it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from model.sampling.breakers import breaker_tokens
from model.tokens.tokenizer import Tokenizer
from tests.server.fakes import byte_tokenizer

TOKENIZER = byte_tokenizer()
"""One token for each byte, and `<s>`, `</s>` and `<|turn|>`."""
BOS, EOS, TURN = 256, 257, 258


def test_a_token_with_the_text_breaks_by_itself() -> None:
    assert breaker_tokens(TOKENIZER, ["|"]) == {ord("|"): ((),), TURN: ((),)}


def test_a_token_that_ends_with_the_beginning_breaks_with_what_must_follow() -> None:
    found = breaker_tokens(TOKENIZER, [">\nx"])

    assert found == {token: ((ord("\n"), ord("x")),) for token in (ord(">"), BOS, EOS, TURN)}


def test_what_follows_is_bounded() -> None:
    assert breaker_tokens(TOKENIZER, ["a" + "b" * 39]) == {ord("a"): ((ord("b"),) * 20,)}


def test_a_rest_within_a_character_is_no_text() -> None:
    # The byte tokens of é: the second cannot be encoded alone.
    assert breaker_tokens(TOKENIZER, ["é!"]) == {}
    assert breaker_tokens(TOKENIZER, ["!é"]) == {ord("!"): (tuple("é".encode()),)}


def reference(tokenizer: Tokenizer, text: str) -> dict[int, set[tuple[int, ...]]]:
    """Every token and every split of the text into its end and a rest."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.piece(token_id).decode("latin-1")
        if text in piece:
            found[token_id] = {()}
            continue
        for cut in range(1, len(text)):
            if piece.endswith(text[:cut]):
                rest = tokenizer.encode(text[cut:], add_special=False, parse_special=False)
                found.setdefault(token_id, set()).add(tuple(rest))
    return found


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text("<|/s>tu", min_size=1, max_size=5), min_size=1, max_size=3))
def test_several_texts_are_broken_by_the_tokens_of_each(texts: list[str]) -> None:
    expected: dict[int, set[tuple[int, ...]]] = {}
    for text in texts:
        for token_id, following in reference(TOKENIZER, text).items():
            expected[token_id] = expected.get(token_id, set()) | following

    found = breaker_tokens(TOKENIZER, texts)

    assert {token_id: set(following) for token_id, following in found.items()} == expected
    assert breaker_tokens(TOKENIZER, texts) == found
