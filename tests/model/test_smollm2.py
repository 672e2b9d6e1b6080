"""The real model: greedy tokens equal to transformers' on the same weights, and bits that no neighbour changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from model.backend import choose_backend
from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.language_model import load_language_model
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from tests.model.decoding import generate, logits_of, scattered_tables, whole

# "What is the capital of France, and what is it known for?" as a chat; the beginnings of a story and of a program.
CHAT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 28, 284, 732, 314, 357, 1343, 327, 47, 2, 198, 1, 520, 9531, 198]
STORY = [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28]
PROGRAM = [1604, 3987, 46477, 24, 94, 727, 198]
PROMPTS = [CHAT, STORY]
NUM_NEW = 64


@dataclass(frozen=True)
class Weights:
    """The file's tensors in float32, read once for transformers and for us."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]


@pytest.fixture(scope="module")
def weights(smollm2_path: Path) -> Weights:
    checkpoint = load_checkpoint(smollm2_path)
    return Weights(checkpoint.config, dict(checkpoint.tensors))


def transformers_model(weights: Weights) -> LlamaForCausalLM:
    config = weights.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    )
    missing, unexpected = model.load_state_dict(dict(weights.tensors), strict=False, assign=True)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def test_greedy_tokens_are_those_of_transformers(weights: Weights) -> None:
    decoder = Decoder(weights.config, weights.tensors, choose_backend("cpu", "float32"))
    num_blocks, tables = scattered_tables([len(prompt) + NUM_NEW for prompt in PROMPTS])
    adapters = LoraCache([], decoder.adaptable, decoder.backend, max_bytes=0)
    runner = ModelRunner(decoder, KVCache(decoder.config, num_blocks, decoder.backend), adapters)
    outputs = generate(runner, PROMPTS, tables, NUM_NEW, chunk=10)
    oracle = transformers_model(weights)
    for prompt, tokens in zip(PROMPTS, outputs, strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + tokens])).logits[0]
        # Each token is the most likely one after those before it: by induction, what transformers generates.
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_a_token_has_the_same_bits_alone_in_a_batch_and_in_chunks(smollm2_path: Path, dtype: str) -> None:
    checkpoint = load_checkpoint(smollm2_path)
    backend = choose_backend("cpu", dtype, checkpoint)
    decoder = load_language_model(checkpoint.config, checkpoint.tensors, backend)
    prompts = [CHAT, STORY, PROGRAM, CHAT[1:], STORY[2:]]
    together = logits_of(decoder, prompts, [[len(prompt) - 1 for prompt in prompts], [1] * len(prompts)])
    for prompt, logits in zip(prompts, together, strict=True):
        assert torch.equal(logits, whole(decoder, prompt))
    [in_chunks] = logits_of(decoder, [CHAT], [[1], [9], [1], [12]])
    assert torch.equal(in_chunks, together[0])
