"""From a checkpoint's tensors to the decoder's weights. Decides which modules share a matrix product.

Fused products (queries, keys and values; gate and up) are put together here, one tensor at a time, so that the peak of
memory stays near the size of the weights as they will be used. Knows no file format.

H query heads, K KV heads, h head size, D hidden, F MLP, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.backend import Backend
from model.config import ModelConfig
from model.linear import Linear, pack_linear
from model.lora import Projection


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer; those of norms are float32."""

    name: str
    """'layers.0': the projections are called 'layers.0.qkv' and so on."""
    attention_norm: Tensor  # (D,)
    qkv: Linear  # D → (H + 2K) · h
    q_norm: Tensor | None  # (h,)
    k_norm: Tensor | None  # (h,)
    o: Linear  # H · h → D
    mlp_norm: Tensor  # (D,)
    gate_up: Linear  # D → 2F
    down: Linear  # F → D


def layer_projections(config: ModelConfig, i: int) -> tuple[Projection, Projection, Projection, Projection]:
    """Describe the matrix products of layer i in the order in which they run: qkv, o, gate_up, down."""
    D, F = config.hidden_size, config.intermediate_size
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
    qkv = ((f"{attention}.q_proj", q_out), (f"{attention}.k_proj", kv_out), (f"{attention}.v_proj", kv_out))
    return (
        Projection(f"layers.{i}.qkv", D, qkv),
        Projection(f"layers.{i}.o", q_out, ((f"{attention}.o_proj", D),)),
        Projection(f"layers.{i}.gate_up", D, ((f"{mlp}.gate_proj", F), (f"{mlp}.up_proj", F))),
        Projection(f"layers.{i}.down", F, ((f"{mlp}.down_proj", D),)),
    )


class WeightLoader:
    """Takes tensors by Hugging Face's names, as a checkpoint has checked them, and lays them out for a backend.

    What it returns never shares memory with `tensors`, which may be a file's pages.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        self._config = config
        self._tensors = tensors
        self._backend = backend

    def layer(self, i: int) -> Layer:
        """Load the weights of layer i."""
        config, path = self._config, f"model.layers.{i}"
        qkv, o, gate_up, down = layer_projections(config, i)
        return Layer(
            name=f"layers.{i}",
            attention_norm=self.norm(f"{path}.input_layernorm", config.hidden_size),
            qkv=self._linear(qkv, config.qkv_bias),
            q_norm=self.norm(f"{path}.self_attn.q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=self.norm(f"{path}.self_attn.k_norm", config.head_dim) if config.qk_norm else None,
            o=self._linear(o, config.o_bias),
            mlp_norm=self.norm(f"{path}.post_attention_layernorm", config.hidden_size),
            gate_up=self._linear(gate_up, config.mlp_bias),
            down=self._linear(down, config.mlp_bias),
        )

    def norm(self, module: str, size: int) -> Tensor:
        """Load the weight (size,) of a norm, in float32."""
        return self._tensor(f"{module}.weight", (size,)).to(self._backend.device, torch.float32, copy=True)

    def matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        """Load a matrix (V, D), the embedding's or the head's, in `dtype`."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._tensor(name, shape).to(self._backend.device, dtype, copy=True)

    def embedding(self) -> Tensor:
        """Load the embedding, with a row of zeros below (V + 1, D): for all tokens that only adapters know."""
        name, (V, D) = "model.embed_tokens.weight", (self._config.vocab_size, self._config.hidden_size)
        rows = torch.zeros(V + 1, D, device=self._backend.device, dtype=self._backend.dtype)
        rows[:V] = self._tensor(name, (V, D))
        return rows

    def _linear(self, projection: Projection, has_bias: bool) -> Linear:
        device, dtype = self._backend.device, self._backend.dtype
        num_rows = sum(size for _, size in projection.parts)
        weight = torch.empty(num_rows, projection.in_features, device=device, dtype=dtype)
        bias = torch.empty(num_rows, device=device, dtype=dtype) if has_bias else None
        row = 0
        for module, size in projection.parts:
            weight[row : row + size] = self._tensor(f"{module}.weight", (size, projection.in_features))
            if bias is not None:
                bias[row : row + size] = self._tensor(f"{module}.bias", (size,))
            row += size
        return pack_linear(weight, bias, self._backend)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors[name]
        assert tensor.shape == shape, (name, tensor.shape, shape)
        return tensor
