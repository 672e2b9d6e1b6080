"""A GGUF model's tensors under Hugging Face's names and in Hugging Face's row order.

GGUF calls tensors by llama.cpp's names. For the architecture llama its converter also reorders the rows of the query
and key projections: ggml rotates adjacent pairs (2i, 2i+1) there, Hugging Face the halves (i, i + h/2). Both are
undone on reading. Source: gguf's constants.MODEL_TENSOR names and `LlamaModel.permute` in llama.cpp's
convert_hf_to_gguf.py.
"""

import re
from collections.abc import Iterator, Mapping

import torch

from model.config import CheckpointError, ModelConfig
from model.gguf import GgufFile

ROPE_DIVISORS = "rope_freqs.weight"
"""Read with the configuration; it has no counterpart in Hugging Face's files."""

_ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")


def hf_name(name: str) -> str | None:
    """Return Hugging Face's name of a GGUF tensor, None where there is none."""
    if name in _ENDS:
        return _ENDS[name]
    match = _IN_BLOCK.fullmatch(name)
    if match is None or match[2] not in _MODULES:
        return None
    return f"model.layers.{match[1]}.{_MODULES[match[2]]}.{match[3]}"


def separate_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder each head's rows from pairs side by side to halves one after the other: the rows 0, 2, 4, … 1, 3, 5, ….

    `rows` is a weight (num_heads * h, in) or a bias (num_heads * h,).
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # (heads, h/2, 2, …)
    return pairs.transpose(1, 2).reshape(rows.shape)


class GgufWeights(Mapping[str, torch.Tensor]):
    """The tensors of a GGUF file by Hugging Face's names, dequantised to float32 each time one is read."""

    def __init__(self, file: GgufFile, config: ModelConfig, *, is_interleaved: bool) -> None:
        """`is_interleaved`: the rows of the query and key projections are in ggml's order.

        Raises CheckpointError naming a tensor that has no name here.
        """
        self._file = file
        self._names: dict[str, str] = {}
        for name in file.tensors:
            if (own := hf_name(name)) is not None:
                self._names[own] = name
            elif name != ROPE_DIVISORS:
                raise CheckpointError(f"{file.path}: tensor {name} is none of a llama, mistral, qwen2 or qwen3 model")
        self._interleaved_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if is_interleaved else {}

    def __getitem__(self, name: str) -> torch.Tensor:
        gguf_name = self._names[name]
        tensor = self._file.read(gguf_name)
        match = _IN_BLOCK.fullmatch(gguf_name)
        num_heads = self._interleaved_heads.get(match[2]) if match else None
        return tensor if num_heads is None else separate_halves(tensor, num_heads)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensors take in the file."""
        return sum(self._file.tensors[name].num_bytes for name in self._names.values())

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor, without reading it."""
        return {name: self._file.tensors[gguf_name].shape for name, gguf_name in self._names.items()}
