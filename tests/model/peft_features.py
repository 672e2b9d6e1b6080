"""All that PEFT can save for LoRA: what is honoured, and what is refused. The one list that tests and docs go by.

test_peft_matrix.py holds each honoured feature against PEFT's own forward, alone and mixed with another adapter, and
each refusal against its message; adapter_table.py writes the table of docs/adapters.md.
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that is refused."""

    name: str
    what: str
    message: str
    """Part of the error."""
    edits: Mapping[str, object] = field(default_factory=dict)
    edit_tensors: Callable[[dict[str, Tensor]], None] | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    is_resized: bool = False
    family: str = "llama"


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

_ACTIVATED = {"alora_invocation_tokens": [7, 9], "task_type": "CAUSAL_LM"}


def _drop(*endings: str) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(endings)]:
            del tensors[name]

    return edit


def _add(**tensors: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda found: found.update({f"base_model.model.{name}": tensor for name, tensor in tensors.items()})


REFUSED: tuple[Refusal, ...] = (
    Refusal("peft_type", "another method than LoRA", "only LoRA adapters can be loaded", {"peft_type": "LOHA"}),
    Refusal(
        "init_lora_weights",
        "'pissa': the base weights were changed",
        "path_initial_model_for_weight_conversion",
        {"init_lora_weights": "pissa"},
    ),
    Refusal(
        "init_lora_weights", "'pissa_niter_16'", "it changes the base weights", {"init_lora_weights": "pissa_niter_16"}
    ),
    Refusal("init_lora_weights", "'olora'", "it changes the base weights", {"init_lora_weights": "olora"}),
    Refusal("init_lora_weights", "'corda'", "it changes the base weights", {"init_lora_weights": "corda"}),
    Refusal("init_lora_weights", "'loftq'", "it changes the base weights", {"init_lora_weights": "loftq"}),
    Refusal("init_lora_weights", "'lora_ga'", "it changes the base weights", {"init_lora_weights": "lora_ga"}),
    Refusal("init_lora_weights", "one not known", "it changes the base weights", {"init_lora_weights": "tomorrow"}),
    Refusal(
        "layer_replication",
        "layers used more than once",
        "train without layer_replication",
        {"layer_replication": [[0, 1], [0, 1]]},
    ),
    Refusal("use_qalora", "QA-LoRA", "train with use_qalora false", {"use_qalora": True}),
    Refusal("use_bdlora", "block-diagonal LoRA", "train without use_bdlora", {"use_bdlora": {"nblocks": 2}}),
    Refusal("kasa_config", "KaSA", "train without kasa_config", {"kasa_config": {"beta": 0.1}}),
    Refusal("velora_config", "VeLoRA", "train without velora_config", {"velora_config": {"num_groups": 4}}),
    Refusal("monteclora_config", "MonteCLoRA", "draws weights at random", {"monteclora_config": {"num_samples": 4}}),
    Refusal(
        "arrow_config", "Arrow routing", "load the adapters that it routes between", {"arrow_config": {"top_k": 2}}
    ),
    Refusal(
        "megatron_config",
        "Megatron's parallel layers",
        "for a Hugging Face model",
        {"megatron_config": {"tensor_model_parallel_size": 2}},
    ),
    Refusal(
        "invocation_string",
        "an invocation that is not tokens",
        "give its tokens as alora_invocation_tokens",
        {"invocation_string": "##!"},
    ),
    Refusal(
        "(any other field)",
        "a field not known that is not off",
        "it may change the output",
        {"a_field_of_tomorrow": "on"},
    ),
    Refusal(
        "modules_to_save",
        "a linear module",
        "only embed_tokens, lm_head, norms and routers can be replaced whole",
        {"modules_to_save": ["o_proj"]},
    ),
    Refusal(
        "modules_to_save",
        "a whole block",
        "only embed_tokens, lm_head, norms and routers can be replaced whole",
        {"modules_to_save": ["self_attn"]},
    ),
    Refusal(
        "modules_to_save",
        "a module of another kind of model",
        "the base model has no 'score'",
        {"modules_to_save": ["score"]},
    ),
    Refusal(
        "layers_to_transform",
        "with an expression as target_modules",
        "target_modules must be a list",
        {"layers_to_transform": [1], "target_modules": ".*q_proj"},
    ),
    Refusal("layers_pattern", "an expression", "names of lists of layers", {"layers_pattern": "lay(ers|er)"}),
    Refusal(
        "target_modules",
        "an expression that takes too long, or needs a memory",
        "list the names of the modules instead",
        {"target_modules": r"(.)\1*q_proj"},
    ),
    Refusal(
        "use_dora",
        "with embed_tokens among the target modules",
        "not with embed_tokens",
        fields={"use_dora": True, "target_modules": ["embed_tokens", "q_proj"]},
    ),
    Refusal(
        "use_dora",
        "on the head, with other rows of the head",
        "not together with other rows of the head",
        fields={"use_dora": True, "target_modules": ["lm_head", "q_proj"]},
        edit_tensors=_add(**{"lm_head.base_layer.weight": torch.ones(VOCAB_SIZE, 64)}),
    ),
    Refusal("lora_bias", "with use_dora", "train with lora_bias false", {"lora_bias": True, "use_dora": True}),
    Refusal(
        "lora_bias",
        "of the head, with added tokens",
        "not together with added tokens",
        fields={"lora_bias": True, "target_modules": ["lm_head", "q_proj"]},
        is_resized=True,
    ),
    Refusal(
        "bias",
        "trained biases that are not in the file",
        "has no bias of",
        fields={"bias": "lora_only", "target_modules": ["q_proj"]},
        edit_tensors=_drop(".bias"),
        family="qwen2",
    ),
    Refusal(
        "trainable_token_indices",
        "of a module that is adapted or saved, too",
        "take it out of one of the two",
        {"trainable_token_indices": [5]},
        fields={"modules_to_save": ["embed_tokens"]},
    ),
    Refusal(
        "trainable_token_indices",
        "of another module",
        "it must name embed_tokens or lm_head",
        {"trainable_token_indices": {"q_proj": [5]}},
    ),
    Refusal(
        "trainable_token_indices",
        "added tokens whose rows are not all there",
        "save_embedding_layers=True",
        fields={"trainable_token_indices": [VOCAB_SIZE]},
        edit_tensors=_drop("base_layer.weight", "lm_head.weight"),
        is_resized=True,
    ),
    Refusal(
        "(saved embedding layers)",
        "rows of fewer tokens than the base model has",
        "or more, 64), that is (tokens, hidden)",
        edit_tensors=_add(**{"lm_head.weight": torch.zeros(100, 64)}),
    ),
    Refusal("alora_invocation_tokens", "with DoRA", "train without it", {**_ACTIVATED, "use_dora": True}),
    Refusal("alora_invocation_tokens", "with biases", "train without it", {**_ACTIVATED, "bias": "all"}),
    Refusal(
        "alora_invocation_tokens", "with saved modules", "train without it", {**_ACTIVATED, "modules_to_save": ["norm"]}
    ),
    Refusal(
        "alora_invocation_tokens", "with tokens", "train without it", {**_ACTIVATED, "trainable_token_indices": [5]}
    ),
    Refusal(
        "alora_invocation_tokens",
        "with parameters",
        "train without it",
        {**_ACTIVATED, "target_parameters": ["q_proj.weight"]},
    ),
    Refusal(
        "alora_invocation_tokens",
        "with the embedding, or added tokens",
        "train with the linear modules of the layers alone",
        _ACTIVATED,
        fields={"target_modules": ["embed_tokens", "q_proj"]},
    ),
    Refusal(
        "(tensor)",
        "one that no field names",
        "do not name",
        edit_tensors=_add(**{"model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(4, 64)}),
    ),
    Refusal(
        "(tensor)",
        "one of another model",
        "is the adapter for another model?",
        edit_tensors=_add(**{"model.layers.7.self_attn.q_proj.lora_A.weight": torch.ones(4, 64)}),
    ),
    Refusal(
        "(tensor)",
        "one missing",
        "has no tensor for it",
        edit_tensors=_drop("layers.0.self_attn.q_proj.lora_A.weight", "layers.0.self_attn.q_proj.lora_B.weight"),
    ),
    Refusal(
        "(tensor)",
        "NaN or infinity",
        "contains NaN or infinity",
        edit_tensors=_add(**{"model.layers.0.self_attn.q_proj.lora_A.weight": torch.full((4, 64), torch.nan)}),
    ),
)
