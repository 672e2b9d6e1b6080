"""The decoder, in reading order: embed, then per layer attention and MLP around the residual stream, norm, head.

One decoder for llama, mistral, smollm, qwen2 (biases), qwen3 (norms on queries and keys), gemma 3 (more norms, layers
with and without a window), mixtral and qwen3-moe (experts): they differ in what `ModelConfig` says, not in code paths.
Knows no files, no requests and no sampling. Source: the reference implementations in Hugging Face transformers, with
whose logits the tests compare.

T tokens in the step, H query heads, K KV heads, h head size, D hidden, V vocabulary.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from model.adapted import AdaptedNorm
from model.attention import AttentionStep
from model.backend import Backend
from model.checkpoint.config import ModelConfig
from model.checkpoint.rope import local_rope_config, rope_attention_factor, rope_frequencies
from model.decoder_weights import WeightLoader, head_projection, layer_projections
from model.kv_cache import KVCache
from model.layers import RotaryTable
from model.lora import Adaptable, LoraStack
from model.outputs import Outputs, Wanted


class Decoder:
    """A model ready to run on one backend: token ids and paged KV in, logits or hidden states out."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        """Lay out the weights, a checked checkpoint's `tensors` by Hugging Face's names in any dtype, one at a time."""
        self.config = config
        self.backend = backend
        in_layers = (projection for i in range(config.num_layers) for projection in layer_projections(config, i))
        self.projections = (*in_layers, head_projection(config))
        """The matrix products that adapters can touch."""
        self.adaptable = Adaptable(self.projections, config.vocab_size, config.hidden_size)
        self.module_shapes: Mapping[str, tuple[int, int]] = {
            module: (out, p.in_features) for p in self.projections for module, out in p.parts
        }
        """(out, in) of each module that adapters can touch, by its path."""
        loader = WeightLoader(config, tensors, backend)
        self._embedding = loader.embedding()  # (V + 1, D)
        self._layers = [loader.layer(i) for i in range(config.num_layers)]
        self._norm = loader.norm("model.norm")  # (D,)
        self._head = loader.head(self._embedding)  # D → V
        self._rotary = _rotary_table(config, backend.device)
        local = local_rope_config(config)
        self._local_rotary = None if local is None else _rotary_table(local, backend.device)
        self._scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale

    def forward(
        self, token_ids: Tensor, step: AttentionStep, wanted: Wanted, kv: KVCache, lora: LoraStack | None
    ) -> Outputs:
        """Compute one step, write its keys and values to `kv`, and return what is wanted of its tokens.

        token_ids (T,) int64; lora None is the base model. On a packed backend no other token of its steps changes a bit
        of a token's logits or state.
        """
        ops, attention, eps = self.backend.ops, self.backend.attention, self.config.rms_norm_eps
        rope = local_rope = self._rotary.at(step.positions, step.max_context)
        if self._local_rotary is not None:
            local_rope = self._local_rotary.at(step.positions, step.max_context)
        residual = self._embed(token_ids, lora)  # (T, D)
        y = y_norm = None
        for layer, keys, values in zip(self._layers, kv.keys, kv.values, strict=True):
            x = ops.add_rms_norm(residual, y, layer.attention_norm(lora), eps, y_norm)  # (T, D)
            qkv = layer.qkv(x, lora)  # (T, (H + 2K) · h)
            q_norm, k_norm = _weight(layer.q_norm, lora), _weight(layer.k_norm, lora)
            cos, sin = rope if layer.window is None else local_rope  # (T, h/2) each
            q = ops.rope_store(qkv, cos, sin, q_norm, k_norm, eps, keys, values, step.slots)  # (T, H, h)
            x = attention.attend(q, keys, values, step, self._scale, layer.window)  # (T, H · h)
            y, y_norm = layer.o(x, lora), _weight(layer.attention_out_norm, lora)  # (T, D)
            x = ops.add_rms_norm(residual, y, layer.mlp_norm(lora), eps, y_norm)  # (T, D)
            y, y_norm = layer.mlp(x, lora), _weight(layer.mlp_out_norm, lora)  # (T, D)
        assert y is not None, "a decoder has at least one layer"
        rows, S = wanted.rows, len(wanted.logits)
        if not len(rows):  # the middle of a prompt
            return Outputs(self._logits(residual[:0], lora), residual[:0])
        x = self.backend.head_ops.add_rms_norm(residual[rows], y[rows], self._norm(lora), eps, y_norm)
        return Outputs(self._logits(x[:S], lora), x[S:].float())

    def _embed(self, token_ids: Tensor, lora: LoraStack | None) -> Tensor:
        rows = F.embedding(token_ids.clamp(max=self.config.vocab_size), self._embedding).float()  # (T, D)
        if lora is not None:
            lora.embed(token_ids, rows)
        return rows if self.config.embedding_scale == 1 else rows.mul_(self.config.embedding_scale)

    def _logits(self, x: Tensor, lora: LoraStack | None) -> Tensor:
        """Return the logits (S, V) or wider, float32, for x (S, D)."""
        if not len(x):
            return x.new_empty(0, self.config.vocab_size if lora is None else lora.vocab_size)
        logits = self._head(x, lora).float()
        if lora is not None:
            logits = lora.extend_logits(logits, x)
        cap = self.config.logit_softcap
        if cap is None:
            return logits
        capped = cap * torch.tanh(logits / cap)
        return capped.masked_fill_(logits.isneginf(), -torch.inf)  # added tokens without a row in the head


def _rotary_table(config: ModelConfig, device: torch.device) -> RotaryTable:
    return RotaryTable(rope_frequencies(config), rope_attention_factor(config), device)


def _weight(norm: AdaptedNorm | None, lora: LoraStack | None) -> Tensor | None:
    return None if norm is None else norm(lora)
