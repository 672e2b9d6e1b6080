"""What tests of quality ask the real model: a text's perplexity, and greedy answers to chat prompts."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from model.kv_cache import KVCache
from model.language_model import LanguageModel
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from model.tokens.tokenizer import Tokenizer
from tests.model.decoding import generate, scattered_tables, whole

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


def perplexity(decoder: LanguageModel, tokens: Sequence[int]) -> float:
    """The decoder's perplexity on a text of `tokens`, in windows of WINDOW that do not see each other."""
    losses = []
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        logits = whole(decoder, window)[:-1]  # (T - 1, V)
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="none"))
    return float(torch.cat(losses).mean().exp())


def chats(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Each question about each topic, as a prompt in the demo model's chat format."""
    for topic, question in product(TOPICS, QUESTIONS):
        text = f"<|im_start|>user\n{question.format(topic)}<|im_end|>\n<|im_start|>assistant\n"
        yield tokenizer.encode(text)


def answers(decoder: LanguageModel, prompts: Sequence[list[int]]) -> list[list[int]]:
    """The NUM_NEW greedy tokens after each prompt."""
    outputs = []
    for start in range(0, len(prompts), 20):
        group = prompts[start : start + 20]
        num_blocks, tables = scattered_tables([len(prompt) + NUM_NEW for prompt in group])
        adapters = LoraCache([], decoder.adaptable, decoder.backend, max_bytes=0)
        runner = ModelRunner(decoder, KVCache(decoder.config, num_blocks, decoder.backend), adapters)
        outputs += generate(runner, group, tables, NUM_NEW)
    return outputs
