"""What int8 costs on the real model: perplexity, and greedy answers that stay the same, against float32.

The second is far from what the default dtype has to show, which is why int8 is not it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch

from model.backend import choose_backend
from model.calibration_text import calibration_prompts
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from model.tokenizer import Tokenizer, load_tokenizer
from model.weights import load_checkpoint
from tests.model.decoding import generate, scattered_tables, whole
from tests.model.int8 import needs_int8

pytestmark = [pytest.mark.slow, needs_int8]

QUESTIONS = (
    "What is {}?",
    "Explain {} to a child.",
    "Write one sentence about {}.",
    "Name three facts about {}.",
    "Why do people care about {}?",
    "Write a short poem about {}.",
    "Who would need {}, and when?",
    "Translate into French: I like {}.",
    "Is {} expensive? Answer yes or no, then say why.",
    "Write a Python function whose name has to do with {}.",
)
TOPICS = (
    "rain", "a violin", "the moon", "bread", "gravity", "a library", "chess", "the sea", "honey", "electricity",
    "a passport", "volcanoes", "tea", "the alphabet", "friendship", "a bicycle", "winter", "the heart", "money", "maps",
)  # fmt: skip
NUM_NEW = 32
TEXT = Path(__file__).parents[1] / "load" / "peer_text.txt"
WINDOW = 400


@dataclass(frozen=True)
class Models:
    """The demo model in both precisions."""

    tokenizer: Tokenizer
    exact: Decoder
    int8: Decoder


@pytest.fixture(scope="module")
def models(smollm2_path: Path) -> Models:
    checkpoint = load_checkpoint(smollm2_path)
    tokenizer, config = load_tokenizer(checkpoint), checkpoint.config
    calibration = calibration_prompts(tokenizer, config.max_position)
    assert 900 <= sum(map(len, calibration)) <= 1300
    exact = Decoder(config, checkpoint.tensors, choose_backend("cpu", "float32"))
    return Models(tokenizer, exact, Decoder(config, checkpoint.tensors, choose_backend("cpu", "int8"), calibration))


def perplexity(decoder: Decoder, tokens: Sequence[int]) -> float:
    losses = []
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        logits = whole(decoder, window)[:-1]  # (T - 1, V)
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="none"))
    return float(torch.cat(losses).mean().exp())


def test_perplexity_is_within_one_percent(models: Models) -> None:
    tokens = models.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    exact, int8 = perplexity(models.exact, tokens), perplexity(models.int8, tokens)
    print(f"perplexity: float32 {exact:.3f}, int8 {int8:.3f} ({int8 / exact - 1:+.2%})")
    assert int8 < 1.01 * exact


def chats(tokenizer: Tokenizer) -> Iterator[list[int]]:
    for topic, question in product(TOPICS, QUESTIONS):
        text = f"<|im_start|>user\n{question.format(topic)}<|im_end|>\n<|im_start|>assistant\n"
        yield tokenizer.encode(text)


def answers(decoder: Decoder, prompts: Sequence[list[int]]) -> list[list[int]]:
    outputs = []
    for start in range(0, len(prompts), 20):
        group = prompts[start : start + 20]
        num_blocks, tables = scattered_tables([len(prompt) + NUM_NEW for prompt in group])
        adapters = LoraCache([], decoder.adaptable, decoder.backend, max_bytes=0)
        runner = ModelRunner(decoder, KVCache(decoder.config, num_blocks, decoder.backend), adapters)
        outputs += generate(runner, group, tables, NUM_NEW)
    return outputs


def test_most_greedy_answers_begin_the_same(models: Models) -> None:
    prompts = list(chats(models.tokenizer))
    assert len(prompts) == 200
    pairs = list(zip(answers(models.exact, prompts), answers(models.int8, prompts), strict=True))
    first = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
    all_equal = sum(a == b for a, b in pairs) / len(pairs)
    print(f"equal to float32: first token {first:.1%}, first {NUM_NEW} {all_equal:.1%}")
    assert first >= 0.85
    assert all_equal >= 0.1
