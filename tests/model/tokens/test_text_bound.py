"""Texts known to be too long by their length."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from model.tokens.text_bound import TextBound, text_bound
from model.tokens.vocabulary import SPACE, Vocabulary, byte_level_piece
from tests.server.fakes import byte_tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet(), key=byte_level_piece)
SPELLS_SPACES = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
SHRINKING = "\u212a\u2126\u0390\u1100\u1161\u11a8\U0002f800a\u0300 "
"""What NFC makes shorter, or longer."""


def vocabulary_with(
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    special: AddedToken | None = None,
    num_bytes: int = 256,
) -> Vocabulary:
    """The vocabulary of bytes, with another way to encode."""
    base = byte_tokenizer().vocabulary
    alphabet = {text: i for i, text in enumerate(ALPHABET[:num_bytes])}
    encoder = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    if normalizer is not None:
        encoder.normalizer = normalizer
    encoder.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.add_special_tokens([special or "</s>"])
    return Vocabulary(**{**vars(base), "encoder": encoder, "pieces": (*base.pieces[:num_bytes], b"</s>")})


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Sequence([normalizers.NFC()])])
@settings(deadline=None, max_examples=200)
@given(text=st.one_of(st.text(max_size=40), st.text(st.sampled_from(SHRINKING), max_size=40)))
def test_no_text_has_fewer_tokens_than_its_length_says(normalizer: normalizers.Normalizer | None, text: str) -> None:
    check(vocabulary_with(normalizer), text)


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.sampled_from("abcA\u00e9\u65e5\U0001f600 "), max_size=30))
def test_what_has_no_token_counts_for_nothing(text: str) -> None:
    check(vocabulary_with(num_bytes=ord("b")), text)


def check(vocabulary: Vocabulary, text: str) -> None:
    bound = text_bound(vocabulary)
    assert bound is not None
    ids = vocabulary.encoder.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
    assert len(ids) >= bound.fewest_tokens(text)


def test_the_bound_is_the_longest_token() -> None:
    assert text_bound(vocabulary_with()) == TextBound(len("</s>"), b"")
    assert text_bound(vocabulary_with(SPELLS_SPACES)) == TextBound(len("</s>"), b"")
    assert text_bound(vocabulary_with(num_bytes=254)) == TextBound(len("</s>"), b"\xfe\xff")
    assert TextBound(4, b"ab").fewest_tokens("abcabcccc") == 1


@pytest.mark.parametrize(
    "vocabulary",
    [
        vocabulary_with(normalizers.NFKC()),
        vocabulary_with(normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])),
        vocabulary_with(normalizers.Replace("a", "")),
        vocabulary_with(pre_tokenizer=pre_tokenizers.Split("a", "removed")),
        vocabulary_with(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])),
        vocabulary_with(special=AddedToken("<mask>", special=True, lstrip=True)),
    ],
)
def test_where_text_may_be_left_out_there_is_no_bound(vocabulary: Vocabulary) -> None:
    assert text_bound(vocabulary) is None
