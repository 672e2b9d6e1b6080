"""A GGUF model's tensors under Hugging Face's names and in Hugging Face's row order.

GGUF calls tensors by llama.cpp's names. For the architecture llama its converter also reorders the rows of the query
and key projections: ggml rotates adjacent pairs (2i, 2i+1) there, Hugging Face the halves (i, i + h/2). For Gemma it
adds 1 to the norms' weights, and for mixtures of experts it stacks those of a layer. All that is undone on reading.
Source: gguf's constants.MODEL_TENSOR names, and the model classes of llama.cpp's converter.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from model.checkpoint.config import CheckpointError, ModelConfig
from model.checkpoint.gguf import GgufFile
from model.checkpoint.gguf_blocks import block_codes, has_blocks
from model.cpu.block_weight import BlockWeight, pack_blocks, quantise_blocks

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
    "ffn_gate_inp": "mlp.gate",
}
_SANDWICH_NORMS = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""In models that also norm what attention and MLP give."""
_IN_BLOCK = re.compile(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)")
_EXPERTS = re.compile(r"blk\.(0|[1-9]\d*)\.ffn_(gate|up|down)_exps\.weight")
_ONE_EXPERT = re.compile(r"blk\.(0|[1-9]\d*)\.ffn_(gate|up|down)\.(0|[1-9]\d*)\.weight")


def hf_name(name: str, *, sandwich_norms: bool = False) -> str | None:
    """Return Hugging Face's name of a GGUF tensor, None where there is none (or more than one, of stacked experts)."""
    if name in _ENDS:
        return _ENDS[name]
    if match := _ONE_EXPERT.fullmatch(name):  # of files from before the experts were stacked
        return f"model.layers.{match[1]}.mlp.experts.{match[3]}.{match[2]}_proj.weight"
    match = _IN_BLOCK.fullmatch(name)
    modules = _MODULES | _SANDWICH_NORMS if sandwich_norms else _MODULES
    if match is None or match[2] not in modules:
        return None
    return f"model.layers.{match[1]}.{modules[match[2]]}.{match[3]}"


def separate_halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder each head's rows from pairs side by side to halves one after the other: the rows 0, 2, 4, … 1, 3, 5, ….

    `rows` is a weight (num_heads * h, in) or a bias (num_heads * h,).
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # (heads, h/2, 2, …)
    return pairs.transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is: a tensor of the file, or one expert's part of it."""

    name: str
    expert: int | None


class GgufWeights(Mapping[str, torch.Tensor]):
    """The tensors of a GGUF file by Hugging Face's names, dequantised to float32 each time one is read."""

    def __init__(self, file: GgufFile, config: ModelConfig, *, is_interleaved: bool) -> None:
        """`is_interleaved`: the rows of the query and key projections are in ggml's order.

        Raises CheckpointError naming a tensor that has no name here.
        """
        self._file = file
        self._norm_offset = config.norm_offset
        self._places: dict[str, _Place] = {}
        for name, tensor in file.tensors.items():
            if match := _EXPERTS.fullmatch(name):
                for expert in range(tensor.shape[0] if len(tensor.shape) == 3 else 0):
                    own = f"model.layers.{match[1]}.mlp.experts.{expert}.{match[2]}_proj.weight"
                    self._places[own] = _Place(name, expert)
            elif (own_name := hf_name(name, sandwich_norms=config.sandwich_norms)) is not None:
                self._places[own_name] = _Place(name, None)
            elif name != ROPE_DIVISORS:
                raise CheckpointError(f"{file.path}: tensor {name} is none of a {config.family} model")
        self._interleaved_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if is_interleaved else {}

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._places[name]
        tensor = self._file.read(place.name, place.expert)
        if self._norm_offset and name.endswith("norm.weight"):
            return tensor - self._norm_offset
        num_heads = self._num_interleaved_heads(place)
        return tensor if num_heads is None else separate_halves(tensor, num_heads)

    def blocks(self, name: str) -> BlockWeight:
        """Return a weight (out, in) with its codes as stored where its type has some, else quantised.

        Raises CheckpointError where `in` is not a multiple of 32, or an element is not finite or too large for float16.
        """
        place = self._places[name]
        stored = self._file.stored_rows(place.name, place.expert)
        if (num_heads := self._num_interleaved_heads(place)) is not None:
            stored = stored[separate_halves(torch.arange(len(stored)), num_heads).numpy()]
        out_features, in_features = self._shape(place)
        codes = block_codes(self._file.tensors[place.name].type_id, stored, (out_features, in_features))
        try:
            return quantise_blocks(self[name]) if codes is None else pack_blocks(*codes)
        except ValueError as error:
            raise CheckpointError(f"{self._file.path}: tensor {place.name}: {error}") from error
        finally:
            self._file.forget(place.name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_block_quantised(self) -> bool:
        """Whether most bytes of the layers' matrices are of types whose codes `blocks` keeps."""
        kept = other = 0
        for name in {place.name for own, place in self._places.items() if own.startswith("model.layers.")}:
            tensor = self._file.tensors[name]
            if len(tensor.shape) == 1:
                continue
            if has_blocks(tensor.type_id):
                kept += tensor.num_bytes
            else:
                other += tensor.num_bytes
        return kept > other

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensors take in the file."""
        names = {place.name for place in self._places.values()}
        return sum(self._file.tensors[name].num_bytes for name in names)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor, without reading it."""
        return {name: self._shape(place) for name, place in self._places.items()}

    def _num_interleaved_heads(self, place: _Place) -> int | None:
        match = _IN_BLOCK.fullmatch(place.name)
        return self._interleaved_heads.get(match[2]) if match else None

    def _shape(self, place: _Place) -> tuple[int, ...]:
        shape = self._file.tensors[place.name].shape
        return shape if place.expert is None else shape[1:]


def load_blocks(tensors: Mapping[str, torch.Tensor], name: str) -> BlockWeight:
    """Return the weight (out, in) of a checkpoint in blocks: codes that a GGUF file has, else quantised to 8 bits.

    Raises CheckpointError where `in` is not a multiple of 32, or an element is not finite or too large for float16.
    """
    if isinstance(tensors, GgufWeights):
        return tensors.blocks(name)
    try:
        return quantise_blocks(tensors[name])
    except ValueError as error:
        raise CheckpointError(f"tensor {name}: {error}") from error
