"""What is refused of all that PEFT can save for LoRA, and what the message says: the rest of peft_features.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.model.tiny import VOCAB_SIZE


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
    Refusal("kasa_config", "KaSA with its defaults", "train without kasa_config", {"kasa_config": {}}),
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
