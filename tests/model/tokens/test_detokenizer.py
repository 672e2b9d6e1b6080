"""Text from tokens that arrive one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder
from tokenizers import models

from model.tokens.detokenizer import Detokenizer
from model.tokens.tokenizer import Tokenizer
from model.tokens.vocabulary import Vocabulary

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = (*BYTES, b"<|im_end|>", b"<tool_call>", "é".encode(), "日本".encode(), b"\xe6\x97", b"")
IM_END, TOOL_CALL, CUT = 256, 257, 260


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte, and a few that hold characters, halves of characters, or nothing."""
    vocabulary = Vocabulary(
        encoder=Encoder(models.BPE()),
        pieces=PIECES,
        control_ids=frozenset({IM_END}),
        bos_id=None,
        eos_id=None,
        adds_bos=False,
        adds_eos=False,
        eog_ids=frozenset(),
        special_tokens={},
        chat_template=None,
        tool_use_template=None,
    )
    return Tokenizer(vocabulary, len(PIECES))


@settings(max_examples=500)
@given(text=st.text())
def test_the_pieces_of_a_text_give_the_text(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    pushed = [detokenizer.push(byte) for byte in text.encode()]

    assert "".join(pushed) == text
    assert detokenizer.flush() == ""


@settings(max_examples=500)
@given(ids=st.lists(st.one_of(st.integers(128, 255), st.integers(0, len(PIECES) - 1))))
def test_any_tokens_give_the_text_of_all_of_them_at_once(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer, render_special=True)
    pushed = "".join(detokenizer.push(token_id) for token_id in ids)

    assert pushed + detokenizer.flush() == tokenizer.decode(ids)


@settings(max_examples=300)
@given(ids=st.lists(st.integers(128, 255), min_size=1))
def test_what_was_sent_is_a_beginning_of_every_possible_continuation(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    sent = "".join(detokenizer.push(token_id) for token_id in ids)

    for continuation in ([], [0x80], [0xBF, 0xBF], [0x41], [CUT]):
        assert tokenizer.decode([*ids, *continuation]).startswith(sent)


def test_an_incomplete_character_waits_for_its_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)

    assert [detokenizer.push(token_id) for token_id in (0x41, CUT, 0xA5, 0x42)] == ["A", "", "日", "B"]


def test_an_incomplete_character_at_the_end_becomes_a_replacement_character(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)

    assert (detokenizer.push(CUT), detokenizer.flush(), detokenizer.flush()) == ("", "\ufffd", "")


def test_control_tokens_are_shown_only_when_asked_for(tokenizer: Tokenizer) -> None:
    ids = (0x41, IM_END, TOOL_CALL)

    plain, special = Detokenizer(tokenizer), Detokenizer(tokenizer, render_special=True)

    assert "".join(map(plain.push, ids)) == "A<tool_call>"
    assert "".join(map(special.push, ids)) == "A<|im_end|><tool_call>"
