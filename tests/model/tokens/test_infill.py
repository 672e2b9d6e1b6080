"""Tokens for filling in are those that a checkpoint names, or known by their texts."""

from pathlib import Path

import pytest

from model.checkpoint.config import CheckpointError
from model.checkpoint.weights import load_checkpoint
from model.tokens.infill import FimTokens, fim_tokens
from model.tokens.tokenizer import load_tokenizer
from model.tokens.tokenizer_gguf import vocabulary_from_gguf
from tests.model.tiny import make_model, write_gguf


def test_known_texts_are_found() -> None:
    qwen = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3, "<|repo_name|>": 4, "<|file_sep|>": 5}
    assert fim_tokens(qwen, {}) == FimTokens(1, 2, 3, 4, 5)
    llama = {"▁<PRE>": 7, "▁<SUF>": 8, "▁<MID>": 9}
    assert fim_tokens(llama, {}) == FimTokens(7, 8, 9)
    assert fim_tokens({"<PRE>": 7}, {}).missing == ["suffix", "middle"]
    assert fim_tokens({}, {}).missing == ["prefix", "suffix", "middle"]


def test_what_is_named_goes_before_what_is_known() -> None:
    assert fim_tokens({"<PRE>": 7, "<SUF>": 8}, {"prefix": 0, "suffix": None}) == FimTokens(0, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_gguf(make_model("llama", folder / "hf"), folder / "model.gguf", "F32")
    return folder


def test_a_gguf_file_names_them_by_id(folder: Path) -> None:
    metadata = dict(load_checkpoint(folder / "model.gguf").gguf or {})
    assert vocabulary_from_gguf(metadata, "file").fim == FimTokens()
    own = {"fim_pre": 5, "fim_suf": 6, "fim_mid": 7, "fim_pad": 8, "fim_rep": 9, "fim_sep": 10}
    named = {f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in own.items()}
    vocabulary = vocabulary_from_gguf({**metadata, **named}, "file")
    assert vocabulary.fim == FimTokens(5, 6, 7, 9, 10)
    assert {8, 9, 10} <= vocabulary.eog_ids
    assert not {5, 6, 7} & vocabulary.eog_ids
    older = {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("prefix", "suffix", "middle"))}
    assert vocabulary_from_gguf({**metadata, **older}, "file").fim == FimTokens(0, 1, 2)


@pytest.mark.parametrize("value", [-1, 10**6, "5"])
def test_an_id_that_is_none_is_named(folder: Path, value: object) -> None:
    metadata = dict(load_checkpoint(folder / "model.gguf").gguf or {})
    with pytest.raises(CheckpointError, match="fim_pre_token_id is"):
        vocabulary_from_gguf({**metadata, "tokenizer.ggml.fim_pre_token_id": value}, "file")


def test_a_directory_has_them_among_its_tokens(folder: Path) -> None:
    directory = folder / "hf"
    file = directory / "tokenizer.json"
    before = file.read_text(encoding="utf-8")
    assert load_tokenizer(load_checkpoint(directory)).vocabulary.fim == FimTokens()
    [text] = [text for text in ("!",) if f'"{text}"' in before]
    file.write_text(before.replace(f'"{text}"', '"<|fim_prefix|>"'), encoding="utf-8")
    fim = load_tokenizer(load_checkpoint(directory)).vocabulary.fim
    assert fim.prefix is not None
    assert fim.missing == ["suffix", "middle"]
