"""All that is honoured of what PEFT can save for LoRA. The one list that tests and docs go by.

test_peft_matrix.py holds each feature against PEFT's own forward, alone and mixed with another adapter; the rest is
peft_refusals.py's; adapter_table.py writes both into docs/adapters.md.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from tests.model.adapter_makers import ALL_LINEAR, ATTENTION, edit_config, edit_tensors, make_peft_adapter
from tests.model.tiny import VOCAB_SIZE

DENSE = ("llama", "qwen2", "qwen3", "gemma3")
MIXTURES = ("mixtral", "qwen3moe")
EVERY = (*DENSE, *MIXTURES)
NUM_ADDED = 3
"""Tokens that a feature's adapter adds, where it adds any."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that is honoured."""

    name: str
    """What stands in the table's first column: the field of adapter_config.json."""
    what: str
    fields: Mapping[str, object] = field(default_factory=dict)
    """Of LoraConfig, beside a rank, an alpha and target modules."""
    families: tuple[str, ...] = DENSE
    """None where another test is its oracle."""
    is_tied: bool = False
    is_resized: bool = False
    """The adapter was trained with NUM_ADDED tokens more than the base model has."""
    edits: Mapping[str, object] = field(default_factory=dict)
    """Fields of the saved config that are changed afterwards."""
    write: Callable[[PreTrainedModel, Path], None] | None = None
    """Writes the directory in place of save_pretrained."""
    dtype: torch.dtype = torch.float32
    note: str = ""


def per_expert(base: PreTrainedModel, directory: Path) -> None:
    """Write an adapter of every expert and the router as transformers 4 knew them, each a linear module of its own."""
    is_mixtral = base.config.model_type == "mixtral"
    block, names = ("block_sparse_moe", ("w1", "w3", "w2")) if is_mixtral else ("mlp", ALL_LINEAR[4:])
    make_peft_adapter(base, directory, LoraConfig(r=4, lora_alpha=6, target_modules=list(ATTENTION)))
    generator = torch.Generator().manual_seed(8)
    num_experts, D, F = sizes_of(base)
    added: dict[str, Tensor] = {}
    for layer in range(base.config.num_hidden_layers):
        path = f"base_model.model.model.layers.{layer}.{block}"
        sizes = {f"{path}.gate": (num_experts, D)}
        for expert in range(num_experts):
            for name, size in zip(names, ((F, D), (F, D), (D, F)), strict=True):
                sizes[f"{path}.experts.{expert}.{name}"] = size
        for module, (out_features, in_features) in sizes.items():
            added[f"{module}.lora_A.weight"] = torch.randn(4, in_features, generator=generator) * 0.2
            added[f"{module}.lora_B.weight"] = torch.randn(out_features, 4, generator=generator) * 0.2
    edit_tensors(directory, lambda tensors: tensors.update(added))
    edit_config(directory, {"target_modules": [*ATTENTION, "gate", *names]})


def sizes_of(base: PreTrainedModel) -> tuple[int, int, int]:
    """Return the number of experts, the hidden size and an expert's size of a mixture of experts."""
    config = base.config
    if config.model_type == "mixtral":
        return config.num_local_experts, config.hidden_size, config.intermediate_size
    return config.num_experts, config.hidden_size, config.moe_intermediate_size


def converted_pissa(base: PreTrainedModel, directory: Path) -> None:
    """Train an adapter that starts from the base weights' own principal directions, and save it as plain LoRA."""
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights="pissa")
    model = get_peft_model(copy.deepcopy(base), config)
    start = directory.with_name(f"{directory.name}-start")
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(start)
    model.peft_config["default"].init_lora_weights = "pissa"
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(directory, path_initial_model_for_weight_conversion=str(start))


_TOKENS = [12, 15, 31]
"""Tokens of the matrix's prompt."""

HONOURED: tuple[Feature, ...] = (
    Feature("r, lora_alpha", "rank and alpha: the delta is scale · alpha / r · B A x", families=EVERY),
    Feature("lora_alpha", "a negative alpha", {"lora_alpha": -5}, ("llama",)),
    Feature("use_rslora", "alpha / √r", {"use_rslora": True}, EVERY),
    Feature(
        "rank_pattern",
        "ranks by module",
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.self_attn\.[kv]_proj": 9}},
        EVERY,
        note="PEFT's matching: the first pattern that matches the module's path or an end of it",
    ),
    Feature(
        "alpha_pattern",
        "alphas by module",
        {"alpha_pattern": {"self_attn.k_proj": 20, r"model\.layers\.0\.self_attn\.(q|o)_proj": 1}},
        EVERY,
    ),
    Feature(
        "alpha_pattern",
        "with ranks by module and rsLoRA",
        {"use_rslora": True, "rank_pattern": {"^model.layers.0.self_attn.v_proj": 3}, "alpha_pattern": {"v_proj": 11}},
    ),
    Feature(
        "use_dora",
        "weight-decomposed LoRA",
        {"use_dora": True},
        EVERY,
        note="the scale acts inside the norm, as PEFT's set_scale does; norms are measured once, at loading",
    ),
    Feature("use_dora", "with rsLoRA", {"use_dora": True, "use_rslora": True}, ("qwen2",)),
    Feature(
        "use_dora", "on the head", {"use_dora": True, "target_modules": ["lm_head", "q_proj"]}, ("llama", "gemma3")
    ),
    Feature(
        "use_dora",
        "on a tied head",
        {"use_dora": True, "target_modules": ["lm_head", "q_proj"]},
        ("llama", "gemma3"),
        is_tied=True,
    ),
    Feature("lora_bias", "a bias of B", {"lora_bias": True}, ("llama", "qwen2", "gemma3")),
    Feature(
        "bias",
        "'all': every bias of the model, trained in place",
        {"bias": "all"},
        ("qwen2",),
        note="the file's minus the base model's is what is scaled",
    ),
    Feature(
        "bias",
        "'lora_only': the biases of the adapted modules",
        {"bias": "lora_only", "target_modules": ["q_proj", "o_proj"]},
        ("qwen2",),
    ),
    Feature("bias", "with DoRA", {"bias": "all", "use_dora": True}, ("qwen2",)),
    Feature(
        "fan_in_fan_out",
        "transposed weights",
        edits={"fan_in_fan_out": True},
        families=("llama",),
        note="changes nothing: PEFT resets it for linear modules, and there are no others",
    ),
    Feature("target_modules", "names", {"target_modules": ["k_proj", "layers.1.mlp.up_proj"]}),
    Feature("target_modules", "an expression", {"target_modules": r".*\.self_attn\.[qv]_proj"}, EVERY),
    Feature("target_modules", "'all-linear'", {"target_modules": "all-linear"}, EVERY),
    Feature("exclude_modules", "names", {"exclude_modules": ["o_proj", "model.layers.0.mlp.up_proj"]}),
    Feature("exclude_modules", "an expression", {"exclude_modules": r".*\.layers\.0\..*"}),
    Feature("layers_to_transform", "layers", {"layers_to_transform": [1]}, EVERY),
    Feature("layers_pattern", "the name of the list of layers", {"layers_to_transform": 0, "layers_pattern": "layers"}),
    Feature("target_modules", "embed_tokens", {"target_modules": ["embed_tokens", "q_proj"]}, EVERY),
    Feature(
        "target_modules",
        "embed_tokens of a tied model",
        {"target_modules": ["embed_tokens", "q_proj"]},
        is_tied=True,
        note="changes the embedding alone, as in PEFT",
    ),
    Feature("target_modules", "lm_head", {"target_modules": ["lm_head", "v_proj"]}, EVERY),
    Feature(
        "target_modules",
        "lm_head of a tied model",
        {"target_modules": ["lm_head", "v_proj"]},
        is_tied=True,
        note="changes the head alone, as in PEFT",
    ),
    Feature(
        "ensure_weight_tying",
        "deltas of embedding and tied head that are each other's transpose",
        {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
        ("llama", "gemma3"),
        is_tied=True,
    ),
    Feature(
        "ensure_weight_tying",
        "one saved matrix for embedding and tied head",
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        ("llama", "gemma3"),
        is_tied=True,
    ),
    Feature(
        "modules_to_save",
        "embed_tokens",
        {"modules_to_save": ["embed_tokens"]},
        EVERY,
        note="a token overlay: only rows that differ from the base model's are kept",
    ),
    Feature("modules_to_save", "lm_head", {"modules_to_save": ["lm_head"]}, EVERY, note="a token overlay"),
    Feature(
        "modules_to_save",
        "embed_tokens and lm_head of a tied model",
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        is_tied=True,
    ),
    Feature(
        "modules_to_save",
        "embed_tokens of a tied model",
        {"modules_to_save": ["embed_tokens"]},
        is_tied=True,
        note="changes the embedding alone, as in PEFT",
    ),
    Feature(
        "modules_to_save",
        "norms",
        {"modules_to_save": ["norm"]},
        EVERY,
        note="'norm' names every norm, as PEFT compares ends of names",
    ),
    Feature("modules_to_save", "routers", {"modules_to_save": ["gate"]}, MIXTURES),
    Feature("trainable_token_indices", "tokens", {"trainable_token_indices": _TOKENS}, EVERY, note="a token overlay"),
    Feature(
        "trainable_token_indices",
        "tokens of a tied model",
        {"trainable_token_indices": _TOKENS},
        is_tied=True,
        note="changes embedding and head, as in PEFT",
    ),
    Feature(
        "trainable_token_indices",
        "by module",
        {"trainable_token_indices": {"embed_tokens": _TOKENS, "lm_head": [7, 12]}},
    ),
    Feature(
        "trainable_token_indices",
        "by module, the same for both of a tied model",
        {"trainable_token_indices": {"embed_tokens": _TOKENS, "lm_head": _TOKENS}},
        ("llama",),
        is_tied=True,
    ),
    Feature(
        "trainable_token_indices",
        "by module, different for the two of a tied model",
        {"trainable_token_indices": {"embed_tokens": _TOKENS, "lm_head": [7, 12]}},
        ("llama",),
        is_tied=True,
    ),
    Feature(
        "(saved embedding layers)",
        "a resized vocabulary",
        families=("llama", "gemma3", "qwen3moe"),
        is_resized=True,
        note="added tokens extend the vocabulary of requests that use the adapter",
    ),
    Feature(
        "(saved embedding layers)",
        "a resized vocabulary of a tied model",
        families=("llama", "gemma3"),
        is_resized=True,
        is_tied=True,
    ),
    Feature(
        "(saved embedding layers)",
        "with embed_tokens and lm_head among the target modules",
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        ("llama", "gemma3"),
        is_resized=True,
    ),
    Feature(
        "(saved embedding layers)",
        "the same of a tied model",
        {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
        ("llama", "gemma3"),
        is_resized=True,
        is_tied=True,
    ),
    Feature(
        "(saved embedding layers)",
        "with embed_tokens of a tied model among the target modules",
        {"target_modules": ["embed_tokens", "q_proj"]},
        ("llama", "gemma3"),
        is_resized=True,
        is_tied=True,
        note="the saved matrix is both; the delta changes the embedding alone",
    ),
    Feature(
        "(saved embedding layers)",
        "with modules_to_save",
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        ("llama", "gemma3"),
        is_resized=True,
    ),
    Feature(
        "(saved embedding layers)",
        "with modules_to_save of a tied model",
        {"modules_to_save": ["embed_tokens"]},
        ("llama", "gemma3"),
        is_resized=True,
        is_tied=True,
    ),
    Feature(
        "(saved embedding layers)",
        "with trainable_token_indices",
        {"trainable_token_indices": [12, VOCAB_SIZE, VOCAB_SIZE + 2]},
        ("llama", "gemma3"),
        is_resized=True,
    ),
    Feature(
        "(saved embedding layers)",
        "with trainable_token_indices of a tied model",
        {"trainable_token_indices": [12, VOCAB_SIZE, VOCAB_SIZE + 2]},
        ("llama", "gemma3"),
        is_resized=True,
        is_tied=True,
    ),
    Feature(
        "target_parameters",
        "weights of linear modules",
        {"target_modules": [], "target_parameters": ["q_proj.weight", "lm_head.weight"]},
    ),
    Feature(
        "target_parameters",
        "the embedding's weight",
        {"target_modules": [], "target_parameters": ["embed_tokens.weight"]},
    ),
    Feature(
        "target_parameters",
        "stacked experts",
        {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        MIXTURES,
        note="split into a delta for each expert",
    ),
    Feature("target_parameters", "one of the two", {"target_parameters": ["experts.gate_up_proj"]}, MIXTURES),
    Feature(
        "target_parameters", "the other one", {"target_parameters": ["experts.down_proj"], "use_rslora": True}, MIXTURES
    ),
    Feature(
        "target_parameters", "the router", {"target_modules": [], "target_parameters": ["mlp.gate.weight"]}, MIXTURES
    ),
    Feature(
        "target_modules", "experts and router by their names before transformers 5", write=per_expert, families=MIXTURES
    ),
    Feature(
        "init_lora_weights",
        "'gaussian'",
        {"init_lora_weights": "gaussian"},
        ("llama",),
        note="the base weights stay as they are",
    ),
    Feature("init_lora_weights", "'orthogonal'", {"init_lora_weights": "orthogonal"}, ("llama",)),
    Feature("init_lora_weights", "'mica'", {"init_lora_weights": "mica"}, ("llama",)),
    Feature("init_lora_weights", "'eva'", edits={"init_lora_weights": "eva"}, families=("llama",)),
    Feature(
        "init_lora_weights",
        "'pissa', saved with path_initial_model_for_weight_conversion",
        write=converted_pissa,
        families=("llama",),
    ),
    Feature(
        "alora_invocation_tokens",
        "activated LoRA",
        families=(),  # test_activated.py
        note="acts from its invocation on; with deltas of linear modules alone",
    ),
    Feature("lora_dropout", "dropout in training", {"lora_dropout": 0.3}, ("llama",), note="changes nothing"),
    Feature("(file)", "float16", dtype=torch.float16, families=("llama",)),
    Feature("(file)", "bfloat16", dtype=torch.bfloat16, families=("llama",)),
)
