"""The models that stand for those of llama.cpp's tests do what the tests need of them."""

from pathlib import Path

import pytest
import torch

from model.checkpoint.weights import load_checkpoint
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.upstream import models

TEXT = "What is the capital of France ? 媽 🤗"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the random model."""
    path = tmp_path_factory.mktemp("models") / "random.gguf"
    models.write_random_model(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    """Its tokenizer."""
    return load_tokenizer(load_checkpoint(path))


def test_its_vocabulary_has_a_bos_words_and_every_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special=True)
    texts, _ = models.vocabulary()
    assert ids[0] == models.BOS == tokenizer.bos_id
    assert texts.index("▁the") in ids
    assert b"".join(tokenizer.piece(token_id) for token_id in ids[1:]).decode().strip() == TEXT
    assert tokenizer.chat_template is not None


def test_it_writes_nothing_but_printable_text(path: Path) -> None:
    texts, kinds = models.vocabulary()
    output = load_checkpoint(path).tensors["lm_head.weight"]
    printable = torch.tensor([kind == kind.NORMAL for kind in kinds])
    assert bool((output[~printable] == 0).all())
    assert bool((output[printable] != 0).any(dim=1).all())
    assert len(texts) == len(kinds) == output.shape[0]
