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
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = ("llama", "mistral", "smollm", "qwen2", "qwen3")
GGUF_FILE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""What the gguf package can write; Q4_K and its kin it can only read."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("Ġ", "t"), ("Ġ", "a"), ("th", "e"), ("Ġt", "h"), ("Ġth", "e"))
VOCAB_SIZE = len(SPECIAL_TOKENS) + 256 + len(MERGES)
SLIDING_WINDOW = 12
"""Of the mistral model: short enough that a short prompt outgrows it."""

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
    seed: int = 0,
    rope: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Write a random model of the family to the directory `path`, and return it in float32.

    `sharded` spreads it over several files with an index; `rope` gives transformers' `rope_parameters`; the files hold
    `dtype`, whose values the returned model has exactly.
    """
    model = _random_model(family, tied, seed, rope).to(dtype)
    model.save_pretrained(path, max_shard_size="150KB" if sharded else "1GB")
    _write_tokenizer(path)
    return model.to(torch.float32).eval()


def write_gguf(model: PreTrainedModel, path: Path, file_type: str = "F32") -> None:
    """Write a model of `make_model` as llama.cpp's converter would: matrices in `file_type`, vectors in F32."""
    quant = gguf.GGMLQuantizationType[file_type]
    config = model.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if file_type == "F32" else f"MOSTLY_{file_type}"])
    _add_hyperparameters(writer, config)
    _add_tokenizer(writer)
    for name, values in gguf_tensors(model):
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield the model's tensors under GGUF's names, float32, in the row order of llama.cpp."""
    config = model.config
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().numpy().astype(np.float32)
        if config.model_type in ("llama", "mistral"):  # adjacent pairs are rotated there, not halves
            if ".q_proj." in name:
                values = interleave_halves(values, num_heads)
            elif ".k_proj." in name:
                values = interleave_halves(values, num_kv_heads)
        yield _gguf_name(name), values
    if config.rope_parameters["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        yield "rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)


def interleave_halves(values: Array, num_heads: int) -> Array:
    """Reorder the rows of each head from 0, 1, … to 0, h/2, 1, h/2+1, …, as llama.cpp's converter does for llama."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _random_model(family: str, tied: bool, seed: int, rope: Mapping[str, object] | None) -> PreTrainedModel:
    model = _untrained(family, tied, dict(rope) if rope else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * noise)
            else:
                # Large tied embeddings would make the model repeat its input for ever.
                std = (0.1 if tied else 0.3) if "embed" in name else parameter.shape[1] ** -0.5
                parameter.copy_(noise * std)
    return model


def _untrained(family: str, tied: bool, rope: dict[str, object] | None) -> PreTrainedModel:
    shared = {
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
            return LlamaForCausalLM(LlamaConfig(**shared))
        case "smollm":  # the llama architecture with one KV head and another base frequency
            default = {"rope_type": "default", "rope_theta": 100000.0}
            own = {"num_hidden_layers": 3, "num_key_value_heads": 1, "rope_parameters": rope or default}
            return LlamaForCausalLM(LlamaConfig(**{**shared, **own}))
        case "mistral":
            return MistralForCausalLM(MistralConfig(**shared, sliding_window=SLIDING_WINDOW))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**shared))
        case "qwen3":  # its head size does not follow from the hidden size
            return Qwen3ForCausalLM(Qwen3Config(**shared, head_dim=32))
    raise ValueError(f"no tiny model of family {family!r}, there are {FAMILIES}")


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
    rope = config.rope_parameters
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
}
_GGUF_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name: str) -> str:
    if name in _GGUF_ENDS:
        return _GGUF_ENDS[name]
    _, _, layer, *module, kind = name.split(".")
    return f"blk.{layer}.{_GGUF_PARTS['.'.join(module)]}.{kind}"
