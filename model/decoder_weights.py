"""From a checkpoint's tensors to the decoder's weights. Decides which modules share a matrix product.

Fused products (queries, keys and values; gate and up) are put together here, one tensor at a time, so that the peak of
memory stays near the size of the weights as they will be used. Knows no file format.

H query heads, K KV heads, h head size, D hidden, F of the MLP or of one expert, E experts, V vocabulary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.adapted import AdaptedLinear, AdaptedNorm
from model.backend import Backend
from model.checkpoint.config import Experts, ModelConfig
from model.linear import pack_linear
from model.lora import Projection
from model.mlp import ExpertsMlp, GatedMlp, Mlp


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer, and what sets it apart from others."""

    window: int | None
    """How many tokens one sees, itself included; None: all before it."""
    attention_norm: AdaptedNorm  # (D,)
    qkv: AdaptedLinear  # D → (H + 2K) · h
    q_norm: AdaptedNorm | None  # (h,)
    k_norm: AdaptedNorm | None  # (h,)
    o: AdaptedLinear  # H · h → D
    attention_out_norm: AdaptedNorm | None  # (D,): of what attention gives
    mlp_norm: AdaptedNorm  # (D,)
    mlp: Mlp  # D → D
    mlp_out_norm: AdaptedNorm | None  # (D,): of what the MLP gives


def layer_projections(config: ModelConfig, i: int) -> Iterator[Projection]:
    """Yield the matrix products of layer i: qkv, o, then gate_up and down, or the router and those of each expert."""
    yield from _attention_projections(config, i)
    experts = config.experts_of(i)
    if experts is None:
        yield from _mlp_projections(config, f"layers.{i}", f"model.layers.{i}.mlp", config.intermediate_size)
        return
    yield _router_projection(config, i, experts)
    for e in range(experts.count):
        yield from _expert_projections(config, i, e, experts)


def head_projection(config: ModelConfig) -> Projection:
    """Describe the product that gives the logits."""
    return Projection("head", config.hidden_size, (("lm_head", config.vocab_size),), in_head_dtype=True)


def _attention_projections(config: ModelConfig, i: int) -> tuple[Projection, Projection]:
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    path = f"model.layers.{i}.self_attn"
    qkv = ((f"{path}.q_proj", q_out), (f"{path}.k_proj", kv_out), (f"{path}.v_proj", kv_out))
    return (
        Projection(f"layers.{i}.qkv", config.hidden_size, qkv),
        Projection(f"layers.{i}.o", q_out, ((f"{path}.o_proj", config.hidden_size),)),
    )


def _mlp_projections(config: ModelConfig, name: str, path: str, F: int) -> tuple[Projection, Projection]:
    D = config.hidden_size
    return (
        Projection(f"{name}.gate_up", D, ((f"{path}.gate_proj", F), (f"{path}.up_proj", F))),
        Projection(f"{name}.down", F, ((f"{path}.down_proj", D),)),
    )


def _router_projection(config: ModelConfig, i: int, experts: Experts) -> Projection:
    part = (f"model.layers.{i}.mlp.gate", experts.count)
    return Projection(f"layers.{i}.router", config.hidden_size, (part,), in_head_dtype=True)


def _expert_projections(config: ModelConfig, i: int, e: int, experts: Experts) -> tuple[Projection, Projection]:
    name, path = f"layers.{i}.experts.{e}", f"model.layers.{i}.mlp.experts.{e}"
    return _mlp_projections(config, name, path, experts.intermediate_size)


class WeightLoader:
    """Takes tensors by Hugging Face's names, as a checkpoint has checked them, and lays them out for a backend.

    What it returns never shares memory with `tensors`, which may be a file's pages.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        self._config = config
        self._tensors = tensors
        self._backend = backend
        self._activate = backend.ops.gelu_mul if config.activation == "gelu" else backend.ops.silu_mul

    def layer(self, i: int) -> Layer:
        """Load the weights of layer i."""
        config, path = self._config, f"model.layers.{i}"
        qkv, o = _attention_projections(config, i)
        has_sandwich, has_qk_norm = config.sandwich_norms, config.qk_norm
        mlp_norm = "pre_feedforward_layernorm" if has_sandwich else "post_attention_layernorm"
        return Layer(
            window=config.window(i),
            attention_norm=self.norm(f"{path}.input_layernorm"),
            qkv=self._linear(qkv, config.qkv_bias),
            q_norm=self.norm(f"{path}.self_attn.q_norm", config.head_dim) if has_qk_norm else None,
            k_norm=self.norm(f"{path}.self_attn.k_norm", config.head_dim) if has_qk_norm else None,
            o=self._linear(o, config.o_bias),
            attention_out_norm=self.norm(f"{path}.post_attention_layernorm") if has_sandwich else None,
            mlp_norm=self.norm(f"{path}.{mlp_norm}"),
            mlp=self._mlp(i),
            mlp_out_norm=self.norm(f"{path}.post_feedforward_layernorm") if has_sandwich else None,
        )

    def norm(self, module: str, size: int | None = None) -> AdaptedNorm:
        """Load the weight of a norm, (size,) or (D,), in float32."""
        shape = (self._config.hidden_size if size is None else size,)
        weight = self._tensor(f"{module}.weight", shape).to(self._backend.device, torch.float32, copy=True)
        return AdaptedNorm(module, weight.add_(self._config.norm_offset))

    def embedding(self) -> Tensor:
        """Load the embedding, with a row of zeros below (V + 1, D): for all tokens that only adapters know."""
        name, (V, D) = "model.embed_tokens.weight", (self._config.vocab_size, self._config.hidden_size)
        rows = torch.zeros(V + 1, D, device=self._backend.device, dtype=self._backend.dtype)
        rows[:V] = self._tensor(name, (V, D))
        return rows

    def head(self, embedding: Tensor) -> AdaptedLinear:
        """Load the head, D → V. A tied one shares the storage of `embedding` where dtype and layout allow: rows of a
        packed one cannot be read."""
        config, backend = self._config, self._backend.in_head_dtype()
        if config.tied_embeddings and backend.dtype == embedding.dtype and not backend.packed:
            weight = embedding[:-1]
        else:
            name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
            shape = (config.vocab_size, config.hidden_size)
            weight = self._tensor(name, shape).to(backend.device, backend.dtype, copy=True)
        return AdaptedLinear(head_projection(config).name, pack_linear(weight, None, backend))

    def _mlp(self, i: int) -> Mlp:
        config = self._config
        experts = config.experts_of(i)
        if experts is None:
            gate_up, down = _mlp_projections(config, f"layers.{i}", f"model.layers.{i}.mlp", config.intermediate_size)
            return self._gated_mlp(gate_up, down, config.mlp_bias)
        router = self._linear(_router_projection(config, i, experts), False)
        loaded = [self._gated_mlp(*_expert_projections(config, i, e, experts), False) for e in range(experts.count)]
        return ExpertsMlp(experts, router, self._backend.in_head_dtype().dtype, loaded)

    def _gated_mlp(self, gate_up: Projection, down: Projection, has_bias: bool) -> Mlp:
        return GatedMlp(self._linear(gate_up, has_bias), self._linear(down, has_bias), self._activate)

    def _linear(self, projection: Projection, has_bias: bool) -> AdaptedLinear:
        backend = self._backend.in_head_dtype() if projection.in_head_dtype else self._backend
        device, dtype = backend.device, backend.dtype
        num_rows = sum(size for _, size in projection.parts)
        weight = torch.empty(num_rows, projection.in_features, device=device, dtype=dtype)
        bias = torch.empty(num_rows, device=device, dtype=dtype) if has_bias else None
        row = 0
        for module, size in projection.parts:
            weight[row : row + size] = self._tensor(f"{module}.weight", (size, projection.in_features))
            if bias is not None:
                bias[row : row + size] = self._tensor(f"{module}.bias", (size,))
            row += size
        return AdaptedLinear(projection.name, pack_linear(weight, bias, backend))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors[name]
        assert tensor.shape == shape, (name, tensor.shape, shape)
        return tensor
