"""What the default path of the demo model loses beside float32 on the same weights: next to nothing, by the bounds that
the project sets itself."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.language_model import LanguageModel, load_language_model
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.model.quality import TEXT, answers, chats, perplexity

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Models:
    """The demo model on its default path, and in float32."""

    default: LanguageModel
    exact: LanguageModel
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def models(smollm2_path: Path) -> Models:
    checkpoint = load_checkpoint(smollm2_path)
    default, exact = (
        load_language_model(checkpoint.config, checkpoint.tensors, choose_backend("cpu", dtype, checkpoint))
        for dtype in ("auto", "float32")
    )
    return Models(default, exact, load_tokenizer(checkpoint))


def test_perplexity_is_that_of_float32_within_a_hundredth(models: Models) -> None:
    tokens = models.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    got, wanted = perplexity(models.default, tokens), perplexity(models.exact, tokens)
    print(f"perplexity {got:.4f}, float32 {wanted:.4f}, {got / wanted - 1:+.3%}")
    assert abs(got / wanted - 1) < 0.01


def test_greedy_answers_are_mostly_those_of_float32(models: Models) -> None:
    prompts = list(chats(models.tokenizer))
    pairs = list(zip(answers(models.default, prompts), answers(models.exact, prompts), strict=True))
    first = sum(got[0] == wanted[0] for got, wanted in pairs) / len(pairs)
    whole = sum(got == wanted for got, wanted in pairs) / len(pairs)
    print(f"of {len(pairs)} answers {first:.1%} have the same first token, {whole:.1%} all the same")
    assert first >= 0.97
    assert whole >= 0.75
