"""The ways to cut text into words, against the models' own pipelines in tokenizers and transformers."""

import pytest
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from model.tokens.pre_tokenizers import PRE_TOKENIZERS
from model.tokens.vocabulary import byte_level_piece
from tests.model.texts import TEXTS


def words(name: str, text: str) -> list[str]:
    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [byte_level_piece(word).decode("utf-8", "surrogateescape") for word, _ in cut]


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
ORIGINALS = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama-bpe": split_by(TikTokenConverter().pattern),
    "qwen2": split_by(PRETOKENIZE_REGEX),
}


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_the_original(name: str, text: str) -> None:
    ours = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)

    assert [word for word, _ in ours] == [word for word, _ in ORIGINALS[name].pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_no_character_is_lost(name: str, text: str) -> None:
    assert "".join(words(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "it's 2024\n  x", ["it", "'s", " 2024", "\n ", " x"]),
        ("smollm", "it's 2024", ["it", "'s", " ", "2", "0", "2", "4"]),
        ("llama-bpe", "IT'S 12345!\n\n x", ["IT", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("smaug-bpe", "IT'S 12345!\n\n x", ["IT", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "IT'S 123!\n\n x", ["IT", "'S", " ", "1", "2", "3", "!\n\n", " x"]),
        ("tekken", "camelCase's a/b/\n 12", ["camel", "Case", "'s", " a", "/b", "/\n", " ", "1", "2"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
    ],
)
def test_words(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


def test_only_the_models_trained_so_begin_with_bos_and_skip_merges() -> None:
    assert {name for name, way in PRE_TOKENIZERS.items() if way.adds_bos} == {
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
    }
    assert all(way.ignore_merges == way.adds_bos for way in PRE_TOKENIZERS.values())
