"""How files spell the bytes of tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from model.tokens.vocabulary import byte_level_piece, sentencepiece_piece


@settings(deadline=None)
@given(text=st.text(min_size=1))
def test_byte_level_spelling_is_that_of_tokenizers(text: str) -> None:
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)

    assert b"".join(byte_level_piece(word) for word, _ in spelling) == text.encode()


def test_every_byte_has_a_character() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()

    assert sorted(map(byte_level_piece, alphabet)) == [bytes([byte]) for byte in range(256)]


def test_text_outside_the_alphabet_stands_for_itself() -> None:
    assert byte_level_piece("日 本") == "日 本".encode()


def test_sentencepiece_spells_spaces_and_bytes() -> None:
    assert sentencepiece_piece("▁the▁") == b" the "
    assert sentencepiece_piece("<0xE6>") == b"\xe6"
    assert sentencepiece_piece("<0xE6>>") == b"<0xE6>>"
