"""The decoder, in reading order: embed, then per layer attention and MLP around the residual stream, norm, head.

One decoder for llama, mistral, smollm, qwen2 (biases) and qwen3 (norms on queries and keys): they differ in what
`ModelConfig` says, not in code paths. Knows no files, no requests and no sampling. Source: the reference
implementations in Hugging Face transformers, with whose logits the tests compare.

T tokens in the step, H query heads, K KV heads, h head size, D hidden, F MLP, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor
from torch.nn import functional as F

from model.attention import AttentionStep
from model.backend import Backend
from model.config import ModelConfig
from model.decoder_weights import WeightLoader, layer_projections
from model.kv_cache import KVCache
from model.layers import RotaryTable
from model.linear import Linear, pack_linear
from model.lora import Adaptable, LoraStack, Projection
from model.rope import rope_attention_factor, rope_frequencies

Weight = TypeVar("Weight", Tensor, Tensor | None)


class Decoder:
    """A model ready to run on one backend: token ids and paged KV in, logits out."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        """Lay out the weights, a checked checkpoint's `tensors` by Hugging Face's names in any dtype, one at a time."""
        self.config = config
        self.backend = backend
        head = Projection("head", config.hidden_size, (("lm_head", config.vocab_size),))
        self.projections = (*(p for i in range(config.num_layers) for p in layer_projections(config, i)), head)
        """The matrix products that adapters can touch."""
        self.adaptable = Adaptable(self.projections, config.vocab_size, config.hidden_size)
        self.module_shapes = {module: (out, p.in_features) for p in self.projections for module, out in p.parts}
        """(out, in) of each module that adapters can touch, by its path."""
        loader = WeightLoader(config, tensors, backend)
        self._embedding = loader.embedding()  # (V + 1, D)
        self._layers = [loader.layer(i) for i in range(config.num_layers)]
        self._norm = loader.norm("model.norm", config.hidden_size)  # (D,)
        self._head = self._load_head(loader)  # D → V
        self._rotary = RotaryTable(rope_frequencies(config), rope_attention_factor(config), backend.device)
        self._scale = config.head_dim**-0.5

    def _load_head(self, loader: WeightLoader) -> Linear:
        """A tied head shares the embedding's storage where dtype and layout allow: rows of a packed one cannot be
        read."""
        backend, dtype = self.backend, self.backend.head_ops.dtype
        tied = self.config.tied_embeddings
        if tied and dtype == backend.dtype and not backend.packed:
            head = self._embedding[:-1]
        else:
            head = loader.matrix("model.embed_tokens.weight" if tied else "lm_head.weight", dtype)
        return pack_linear(head, None, replace(backend, dtype=dtype))

    def forward(
        self, token_ids: Tensor, step: AttentionStep, logit_rows: Tensor, kv: KVCache, lora: LoraStack | None
    ) -> Tensor:
        """Compute one step, write its keys and values to `kv`, and return the logits of the tokens `logit_rows`.

        token_ids (T,) int64; logit_rows int64 indices into them; lora None is the base model. Returns
        (len(logit_rows), V) float32, more columns where adapters add tokens. On a packed backend no other token of its
        steps changes a bit of a token's logits.
        """
        ops, attention, config = self.backend.ops, self.backend.attention, self.config
        eps, window = config.rms_norm_eps, config.sliding_window
        cos, sin = self._rotary.at(step.positions, step.max_context)  # (T, h/2) each
        residual = self._embed(token_ids, lora)  # (T, D)
        y = None
        for layer, keys, values in zip(self._layers, kv.keys, kv.values, strict=True):
            attention_norm = _norm(layer.attention_norm, f"model.{layer.name}.input_layernorm", lora)
            x = ops.add_rms_norm(residual, y, attention_norm, eps)  # (T, D)
            qkv = _project(layer.qkv, f"{layer.name}.qkv", x, lora)  # (T, (H + 2K) · h)
            q_norm = _norm(layer.q_norm, f"model.{layer.name}.self_attn.q_norm", lora)
            k_norm = _norm(layer.k_norm, f"model.{layer.name}.self_attn.k_norm", lora)
            q = ops.rope_store(qkv, cos, sin, q_norm, k_norm, eps, keys, values, step.slots)  # (T, H, h)
            x = attention.attend(q, keys, values, step, self._scale, window)  # (T, H · h)
            y = _project(layer.o, f"{layer.name}.o", x, lora)  # (T, D)
            mlp_norm = _norm(layer.mlp_norm, f"model.{layer.name}.post_attention_layernorm", lora)
            x = ops.add_rms_norm(residual, y, mlp_norm, eps)  # (T, D)
            gate_up = _project(layer.gate_up, f"{layer.name}.gate_up", x, lora)  # (T, 2F)
            y = _project(layer.down, f"{layer.name}.down", ops.silu_mul(gate_up), lora)  # (T, D)
        assert y is not None, "a decoder has at least one layer"
        if not len(logit_rows):  # the middle of a prompt
            return residual.new_empty(0, config.vocab_size if lora is None else lora.vocab_size)
        norm = _norm(self._norm, "model.norm", lora)
        x = self.backend.head_ops.add_rms_norm(residual[logit_rows], y[logit_rows], norm, eps)  # (len(logit_rows), D)
        logits = _project(self._head, "head", x, lora).float()  # (len(logit_rows), V)
        return logits if lora is None else lora.extend_logits(logits, x)

    def _embed(self, token_ids: Tensor, lora: LoraStack | None) -> Tensor:
        rows = F.embedding(token_ids.clamp(max=self.config.vocab_size), self._embedding).float()  # (T, D)
        if lora is not None:
            lora.embed(token_ids, rows)
        return rows


def _project(linear: Linear, name: str, x: Tensor, lora: LoraStack | None) -> Tensor:
    y = linear(x)
    if lora is not None:
        lora.add_to(name, y, x)
    return y


def _norm(weight: Weight, module: str, lora: LoraStack | None) -> Weight:
    return weight if lora is None or weight is None else lora.norm(module, weight)
