"""How high activations rise, channel by channel: a text of about a thousand tokens on its way through the layers.

Layers come one at a time, as they are loaded, so that the model is never in memory as a whole in another precision.
What they compute is what the decoder computes (model/decoder.py); the tests compare. Knows nothing of what the ranges
are for.

T tokens of the text, S pieces of it, D hidden, h head size; `in` are a projection's input features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.attention import AttentionStep
from model.backend import Backend
from model.config import ModelConfig
from model.decoder_weights import Layer
from model.layers import RotaryTable
from model.lora import LoraStack
from model.rope import local_rope_config, rope_attention_factor, rope_frequencies
from model.scaled_rows import Rows
from scheduler.batch import BLOCK_SIZE


class Ranges(LoraStack):
    """An adapter list that changes nothing, and keeps the highest magnitudes of what products read."""

    def __init__(self) -> None:
        super().__init__(0, {}, {}, (), None)
        self.by_projection: dict[str, Tensor] = {}
        """(in,) float32 each."""

    def add_to(self, name: str, y: Rows, x: Tensor) -> None:
        ranges = torch.maximum(x.amax(dim=0), -x.amin(dim=0)).float()
        known = self.by_projection.get(name)
        self.by_projection[name] = ranges if known is None else torch.maximum(known, ranges)


class CalibrationRun:
    """A text's residual stream, after the layers that it has gone through."""

    def __init__(
        self, config: ModelConfig, backend: Backend, embedding: Tensor, prompts: Sequence[Sequence[int]]
    ) -> None:
        """Begin with the embeddings of `prompts`, rows of `embedding` (V or more, D), on a backend without int8."""
        assert not backend.int8
        self._config = config
        self._backend = backend
        self._step = _step(prompts, backend.device)
        tokens = torch.tensor([token for prompt in prompts for token in prompt], device=backend.device)
        self._residual = embedding[tokens].float() * config.embedding_scale  # (T, D)
        self._y: Tensor | None = None
        self._y_norm: Tensor | None = None
        local = local_rope_config(config)
        self._rope = self._angles(config)
        self._local_rope = self._rope if local is None else self._angles(local)
        shape = (int(self._step.block_tables.max()) + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self._keys, self._values = (torch.zeros(shape, dtype=backend.dtype, device=backend.device) for _ in range(2))

    def advance(self, layer: Layer) -> dict[str, Tensor]:
        """Go through the next layer, and return the ranges (in,) of what its projections read, by their names."""
        ops, eps, step, seen = self._backend.ops, self._config.rms_norm_eps, self._step, Ranges()
        scale = self._config.attention_scale or self._config.head_dim**-0.5
        q_norm, k_norm, out_norm, mlp_out_norm = (
            None if norm is None else norm(None)
            for norm in (layer.q_norm, layer.k_norm, layer.attention_out_norm, layer.mlp_out_norm)
        )
        x = ops.add_rms_norm(self._residual, self._y, layer.attention_norm(None), eps, self._y_norm)  # (T, D)
        cos, sin = self._rope if layer.window is None else self._local_rope
        qkv = layer.qkv(x, seen)
        q = ops.rope_store(qkv, cos, sin, q_norm, k_norm, eps, self._keys, self._values, step.slots)
        x = self._backend.attention.attend(q, self._keys, self._values, step, scale, layer.window)
        x = ops.add_rms_norm(self._residual, layer.o(x, seen), layer.mlp_norm(None), eps, out_norm)  # (T, D)
        self._y, self._y_norm = layer.mlp(x, seen), mlp_out_norm
        return seen.by_projection

    def _angles(self, config: ModelConfig) -> tuple[Tensor, Tensor]:
        table = RotaryTable(rope_frequencies(config), rope_attention_factor(config), self._backend.device)
        return table.at(self._step.positions, self._step.max_context)


def _step(prompts: Sequence[Sequence[int]], device: torch.device) -> AttentionStep:
    """The step that computes each prompt as a row of its own, in consecutive blocks."""
    lengths = [len(prompt) for prompt in prompts]
    starts = torch.tensor([0, *lengths]).cumsum(0)  # (S + 1,)
    num_blocks = max(-(-length // BLOCK_SIZE) for length in lengths)
    tables = torch.arange(len(prompts) * num_blocks).view(len(prompts), num_blocks)
    positions = torch.cat([torch.arange(length) for length in lengths])  # (T,)
    first_slots = (tables[:, 0] * BLOCK_SIZE).repeat_interleave(torch.tensor(lengths))
    return AttentionStep(
        query_starts=starts.to(device, torch.int32),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=tables.to(device, torch.int32),
        max_query=max(lengths),
        max_context=max(lengths),
        slots=(first_slots + positions).to(device),
        positions=positions.to(device),
    )
