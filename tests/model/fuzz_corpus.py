"""Sound adapters for tiny models, from which the fuzzers make all the others."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
from peft import LoraConfig
from torch import Tensor

from model.adapters.adapter import BaseWeights
from model.backend import reference_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from tests.model.adapter_makers import ALL_LINEAR, ATTENTION, Metadata, adapter_metadata, make_peft_adapter
from tests.model.tiny import Array, make_model

FAMILIES = ("llama", "qwen3moe", "gemma3")
RANK = 4
PEFT_CONFIGS: Mapping[str, tuple[dict[str, object], ...]] = {
    "llama": (
        {"target_modules": list(ALL_LINEAR)},
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        {"target_modules": r".*\.(q|v)_proj", "use_rslora": True, "rank_pattern": {"v_proj": 2}},
        {"target_modules": "all-linear", "alpha_pattern": {r"layers\.1\..*": 3}, "exclude_modules": ["down_proj"]},
        {"target_modules": ["q_proj", "up_proj"], "use_dora": True, "layers_to_transform": [1]},
        {"target_modules": ["k_proj"], "lora_bias": True, "modules_to_save": ["input_layernorm"]},
        {"target_modules": list(ATTENTION), "trainable_token_indices": [3, 9]},
        {"target_modules": ["o_proj"], "alora_invocation_tokens": [4, 5]},
    ),
    "qwen3moe": (
        {"target_modules": ["q_proj", "v_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
        {"target_modules": ["k_proj"], "target_parameters": ["mlp.gate.weight"]},
    ),
    "gemma3": (
        {"target_modules": "all-linear", "modules_to_save": ["post_feedforward_layernorm"]},
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    ),
}


@dataclass(frozen=True, slots=True, repr=False)
class PeftSeed:
    """What a PEFT directory holds."""

    config: Mapping[str, object]
    tensors: Mapping[str, Tensor]

    def __repr__(self) -> str:
        return f"<PEFT adapter of {self.config['target_modules']}>"


@dataclass(frozen=True, slots=True, repr=False)
class GgufSeed:
    """What a GGUF adapter holds."""

    metadata: Metadata
    tensors: Mapping[str, Array]

    def __repr__(self) -> str:
        return f"<GGUF adapter of {len(self.tensors)} tensors>"


@dataclass(frozen=True, slots=True)
class Target:
    """A tiny model, and adapters that fit it."""

    decoder: Decoder
    weights: BaseWeights
    peft: tuple[PeftSeed, ...]
    gguf: tuple[GgufSeed, ...]


def make_target(family: str, folder: Path) -> Target:
    """Write a tiny model and its adapters below `folder`, and read them back."""
    oracle = make_model(family, folder / family)
    checkpoint = load_checkpoint(folder / family)
    decoder = Decoder(checkpoint.config, checkpoint.tensors, reference_backend())
    weights = BaseWeights(checkpoint.config, decoder.module_shapes, checkpoint.tensors)
    seeds = []
    for i, fields in enumerate(PEFT_CONFIGS[family]):
        directory = folder / f"{family}-{i}"
        make_peft_adapter(oracle, directory, LoraConfig(**{"r": RANK, "lora_alpha": 6, **fields}))
        config = json.loads((directory / "adapter_config.json").read_text())
        seeds.append(PeftSeed(config, safetensors.torch.load_file(directory / "adapter_model.safetensors")))
    metadata: Metadata = {
        **adapter_metadata(oracle),
        "adapter.lora.alpha": 8.0,
        "adapter.lora.task_name": "task",
        "adapter.lora.prompt_prefix": "prefix",
    }
    linear, other = _gguf_tensors(weights)
    activated: Metadata = {**metadata, "adapter.alora.invocation_tokens": [4, 5]}
    return Target(decoder, weights, tuple(seeds), (GgufSeed(activated, linear), GgufSeed(metadata, other)))


def _gguf_tensors(weights: BaseWeights) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return tensors of all linear modules of the first layer, experts included; and those of all else."""
    D, V = weights.config.hidden_size, weights.config.vocab_size
    linear: dict[str, Array] = {}
    for part, gguf_name in _GGUF_NAMES.items():
        if shape := weights.module_shapes.get(f"model.layers.0.{part}"):
            linear |= _pair(f"blk.0.{gguf_name}.weight", (RANK, shape[1]), (shape[0], RANK))
    if (experts := weights.config.experts_of(0)) is not None:
        E, F = experts.count, experts.intermediate_size
        linear |= _pair("blk.0.ffn_up_exps.weight", (E, RANK, D), (E, F, RANK))
        linear |= _pair("blk.0.ffn_down_exps.weight", (E, RANK, F), (E, D, RANK))
    other = _pair("token_embd.weight", (V, RANK), (D, RANK)) | _pair("output.weight", (RANK, D), (V, RANK))
    other |= {"output_norm.weight": _noise(D), "blk.1.attn_norm.weight": _noise(D)}
    return linear, other


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}


def _pair(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, Array]:
    return {f"{name}.lora_a": _noise(*a), f"{name}.lora_b": _noise(*b)}


def _noise(*shape: int) -> Array:
    return (0.2 * np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)).astype(np.float32)
