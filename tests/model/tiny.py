"""Tiny random models on disk, per family: a Hugging Face directory, and the same weights as a GGUF file.

transformers is the oracle: `make_model` returns its model in float32, and everything that reads the files must agree
with it. Every parameter is random (norms and biases too, which initialisation would leave at 1 and 0), so that one
that is left out shows.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from model.checkpoint.module_names import unstack

FAMILIES = ("llama", "mistral", "smollm", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3moe")
INTERLEAVED = ("llama", "mistral", "mixtral")
"""Values of `model_type` for which llama.cpp's converter reorders the rows of queries and keys."""
GGUF_FILE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""What the gguf package can write; Q4_K and its kin it can only read."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("Ġ", "t"), ("Ġ", "a"), ("th", "e"), ("Ġt", "h"), ("Ġth", "e"))
VOCAB_SIZE = len(SPECIAL_TOKENS) + 256 + len(MERGES)
SLIDING_WINDOW = 12
"""Of mistral and gemma3: short enough that a short prompt outgrows it."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Array: TypeAlias = npt.NDArray[np.float32]


def vocabulary() -> list[str]:
    """Return the tokens by id: the special ones, the 256 bytes as byte-level BPE spells them, the results of merges."""
    return [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]


def make_model(
    family: str,
    path: Path,
    *,
    tied: bool = False,
    sharded: bool = False,
    stacked: bool = False,
    seed: int = 0,
    rope: Mapping[str, object] | None = None,
    changes: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Write a random model of the family to the directory `path`, and return it in float32.

    `sharded` spreads it over several files with an index; `stacked` writes experts as transformers 5 holds them, not as
    they are published; `rope` gives transformers' `rope_parameters`, `changes` other fields of its configuration; the
    files hold `dtype`, whose values the returned model has exactly.
    """
    model = _random_model(family, tied, seed, rope, changes or {}).to(dtype)
    max_shard_size = "150KB" if sharded else "1GB"
    model.save_pretrained(path, max_shard_size=max_shard_size, save_original_format=not stacked)
    _write_tokenizer(path)
    return model.to(torch.float32).eval()


def write_gguf(model: PreTrainedModel, path: Path, file_type: str = "F32") -> None:
    """Write a model of `make_model` as llama.cpp does: matrices in `file_type`, vectors and routers in F32."""
    quant = gguf.GGMLQuantizationType[file_type]
    config = model.config
    arch = architecture(model)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"])
    _add_hyperparameters(writer, config)
    _add_tokenizer(writer)
    for name, values in gguf_tensors(model):
        if values.ndim == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def architecture(model: PreTrainedModel) -> str:
    """Return llama.cpp's name of the model's architecture."""
    model_type: str = model.config.model_type
    names = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}
    return names.get(model_type, model_type)


def state_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the model's tensors by their canonical names, experts one by one; without a tied head."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        for part_name, part in unstack(name, tuple(tensor.shape)) or [(name, None)]:
            state[part_name] = tensor.detach() if part is None else tensor.detach()[part]
    return state


def gguf_tensors(model: PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the model's tensors under GGUF's names, float32, in the row order of llama.cpp."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    stacks: dict[str, list[Array]] = {}
    for name, tensor in state_of(model).items():
        values = tensor.numpy().astype(np.float32)
        module = name.rsplit(".", 2)[-2]
        if config.model_type in INTERLEAVED and module in heads:  # adjacent pairs are rotated there, not halves
            values = interleave_halves(values, heads[module])
        if config.model_type == "gemma3_text" and "norm" in name:
            values = values + np.float32(1)
        if ".experts." in name:
            _, _, layer, _, _, _, matrix, _ = name.split(".")
            stacks.setdefault(f"blk.{layer}.ffn_{matrix.removesuffix('_proj')}_exps.weight", []).append(values)
        else:
            yield _gguf_name(name, config.model_type), values
    for name, matrices in stacks.items():
        yield name, np.stack(matrices)
    if config.rope_parameters.get("rope_type") == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        yield "rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)


def interleave_halves(values: Array, num_heads: int) -> Array:
    """Reorder the rows of each head from 0, 1, … to 0, h/2, 1, h/2+1, …, as llama.cpp's converter does for llama."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _random_model(
    family: str, tied: bool, seed: int, rope: Mapping[str, object] | None, changes: Mapping[str, object]
) -> PreTrainedModel:
    model = _untrained(family, tied, dict(rope) if rope else None, changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:  # gemma's weights are the distance from 1
                parameter.copy_((family != "gemma3") + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * noise)
            else:
                # Large tied embeddings would make the model repeat its input for ever.
                std = (0.1 if tied else 0.3) if "embed" in name else parameter.shape[-1] ** -0.5
                std /= model.config.hidden_size**0.5 if "embed" in name and family == "gemma3" else 1.0
                parameter.copy_(noise * std)
    return model


def _untrained(
    family: str, tied: bool, rope: dict[str, object] | None, changes: Mapping[str, object]
) -> PreTrainedModel:
    shared: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    match family:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**{**shared, **changes}))
        case "smollm":  # the llama architecture with one KV head and another base frequency
            default = {"rope_type": "default", "rope_theta": 100000.0}
            own = {"num_hidden_layers": 3, "num_key_value_heads": 1, "rope_parameters": rope or default}
            return LlamaForCausalLM(LlamaConfig(**{**shared, **own, **changes}))
        case "mistral":
            own = {"sliding_window": SLIDING_WINDOW}
            return MistralForCausalLM(MistralConfig(**{**shared, **own, **changes}))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**{**shared, **changes}))
        case "qwen3":  # its head size does not follow from the hidden size
            return Qwen3ForCausalLM(Qwen3Config(**{**shared, "head_dim": 32, **changes}))
        case "gemma3":
            return Gemma3ForCausalLM(Gemma3TextConfig(**{**shared, **_gemma(rope), **changes}))
        case "mixtral":
            own = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96}
            return MixtralForCausalLM(MixtralConfig(**{**shared, **own, **changes}))
        case "qwen3moe":
            own = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**shared, "head_dim": 32, **own, **changes}))
    raise ValueError(f"no tiny model of family {family!r}, there are {FAMILIES}")


def _gemma(rope: dict[str, object] | None) -> dict[str, object]:
    """Three layers, of which the second sees everything; the others have a rotary embedding of their own."""
    scaled = {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0}
    local = {"rope_type": "default", "rope_theta": 1000.0}
    return {
        "num_hidden_layers": 3,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": SLIDING_WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": rope or scaled, "sliding_attention": local},
    }


def _write_tokenizer(path: Path) -> None:
    tokens = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _add_hyperparameters(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if getattr(config, "num_experts_per_tok", None):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name: str, model_type: str) -> str:
    if name in _GGUF_ENDS:
        return _GGUF_ENDS[name]
    _, _, layer, *module, kind = name.split(".")
    parts = _GGUF_PARTS | _GEMMA_PARTS if model_type == "gemma3_text" else _GGUF_PARTS
    return f"blk.{layer}.{parts['.'.join(module)]}.{kind}"
