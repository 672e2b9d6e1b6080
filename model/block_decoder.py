"""The decoder on CPUs whose products are in blocks of integers: tables for the kernel of all layers, and its calls.

The same models as model/decoder.py's, but for mixtures of experts; the same contract, and equal results up to rounding.
Knows no files, no requests and no sampling.

T tokens in the step, S rows of logits, H query heads, K KV heads, h head size, D hidden, F MLP, V vocabulary.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.adapted import AdaptedNorm
from model.attention import AttentionStep
from model.backend import Backend
from model.block_lora import BlockLowRank, lanes_of
from model.checkpoint.config import ModelConfig
from model.checkpoint.gguf_names import load_blocks
from model.checkpoint.rope import local_rope_config, rope_attention_factor, rope_frequencies
from model.cpu import layer_tables as at
from model.cpu.amx import has_amx, tile_configuration
from model.cpu.attention import TILE
from model.cpu.block_products import TILE_SHAPES
from model.cpu.block_weight import BLOCK
from model.cpu.fused_layers import run_layers
from model.cpu.layer_memory import Dims, Step
from model.decoder_weights import WeightLoader, head_projection, layer_projections
from model.kv_cache import KVCache
from model.layer_workspace import LayerWorkspace
from model.layers import RotaryTable
from model.lora import Adaptable, LoraStack
from model.outputs import Outputs, Wanted

_NO_TILES = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """What the kernel reads of the model under one adapter list."""

    products: NDArray[np.int64]
    layers: NDArray[np.int64]
    rank_tiles: int
    """Of the module with the most ranks."""
    kept: list[object]
    """Whose memory the addresses are in."""


class BlockDecoder:
    """A model ready to run: token ids and paged KV in, logits or hidden states out."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> None:
        """Lay out the weights, a checked checkpoint's `tensors` by Hugging Face's names in any dtype, one at a time."""
        self.config = config
        self.backend = backend
        in_layers = [tuple(layer_projections(config, i)) for i in range(config.num_layers)]
        self._projections = (*in_layers, (head_projection(config),))
        self.projections = tuple(projection for layer in self._projections for projection in layer)
        """The matrix products that adapters can touch."""
        self.module_shapes: Mapping[str, tuple[int, int]] = {
            module: (out, p.in_features) for p in self.projections for module, out in p.parts
        }
        """(out, in) of each module that adapters can touch, by its path."""
        self.adaptable = Adaptable(self.projections, config.vocab_size, config.hidden_size)
        self._norms = _norms(config, WeightLoader(config, tensors, backend))
        self._embedding = load_blocks(tensors, "model.embed_tokens.weight")  # (V, D)
        self._base = self._base_tables(tensors)
        self._of_lists: WeakKeyDictionary[LoraStack, _Tables] = WeakKeyDictionary()
        self._rotary = _rotary_table(config)
        local = local_rope_config(config)
        self._local_rotary = self._rotary if local is None else _rotary_table(local)
        self._dims = _dims(config)
        self._configuration = tile_configuration(TILE_SHAPES) if has_amx() else _NO_TILES
        self._workspace = LayerWorkspace(config)

    def forward(
        self, token_ids: Tensor, step: AttentionStep, wanted: Wanted, kv: KVCache, lora: LoraStack | None
    ) -> Outputs:
        """Compute one step, write its keys and values to `kv`, and return what is wanted of its tokens.

        token_ids (T,) int64; lora None is the base model. No other token of its steps changes a bit of a token's logits
        or state.
        """
        T, S, rows = len(token_ids), len(wanted.logits), wanted.rows
        tables = self._tables(lora, kv)
        workspace = self._workspace
        workspace.make_room(T, S, tables.rank_tiles)
        self._embed(token_ids, lora, workspace.residual)
        run_layers(
            tables.products, tables.layers, T, workspace.buffers, self._dims, self._step(step, rows, S, kv),
            self._configuration, torch.get_num_threads(),
        )  # fmt: skip
        logits, x = torch.from_numpy(workspace.logits[:S]), torch.from_numpy(workspace.final[: len(rows)])
        return Outputs(self._finish(logits, x[:S], lora), x[S:])

    def _embed(self, token_ids: Tensor, lora: LoraStack | None, residual: NDArray[np.float32]) -> None:
        V, T = self.config.vocab_size, len(token_ids)
        ids = token_ids.numpy()
        residual[:T] = self._embedding.rows(np.minimum(ids, V - 1))
        residual[:T][ids >= V] = 0  # tokens that only adapters know
        rows = torch.from_numpy(residual[:T])
        if lora is not None:
            lora.embed(token_ids, rows)
        if self.config.embedding_scale != 1:
            rows.mul_(self.config.embedding_scale)

    def _step(self, step: AttentionStep, rows: Tensor, num_logit_rows: int, kv: KVCache) -> Step:
        cos, sin = self._rotary.at(step.positions, step.max_context)
        local_cos, local_sin = (cos, sin)
        if self._local_rotary is not self._rotary:
            local_cos, local_sin = self._local_rotary.at(step.positions, step.max_context)
        return Step(
            step.query_starts.numpy(), step.context_lens.numpy(), step.block_tables.numpy(), step.slots.numpy(),
            cos.numpy(), sin.numpy(), local_cos.numpy(), local_sin.numpy(), rows.numpy(), num_logit_rows,
            max(TILE * self._dims.K // self._dims.H, 1), step.max_context, kv.num_blocks,
        )  # fmt: skip

    def _finish(self, logits: Tensor, x: Tensor, lora: LoraStack | None) -> Tensor:
        if lora is not None:
            logits = lora.extend_logits(logits, x)
        cap = self.config.logit_softcap
        if cap is None or not len(logits):
            return logits
        capped = cap * torch.tanh(logits / cap)
        return capped.masked_fill_(logits.isneginf(), -torch.inf)  # added tokens without a row in the head

    def _base_tables(self, tensors: Mapping[str, Tensor]) -> _Tables:
        L = self.config.num_layers
        products = np.zeros((L + 1, 7, at.NUM_PRODUCT_FIELDS), np.int64)
        layers = np.zeros((L + 1, at.NUM_LAYER_FIELDS), np.int64)
        kept: list[object] = []
        for table, modules in zip(products, self._modules(), strict=True):
            for row, (module, size) in zip(table, modules, strict=False):
                tied = module == "lm_head" and self.config.tied_embeddings
                weight = self._embedding if tied else load_blocks(tensors, f"{module}.weight")
                row[: at.BIAS] = weight.address, weight.bits, size, weight.in_features // BLOCK
                kept.append(weight)
                if f"{module}.bias" in tensors:
                    _set(row, at.BIAS, lanes_of(tensors[f"{module}.bias"]), kept)
        for i, layer in enumerate(layers):
            for field, norm in self._norms[i]:
                _set(layer, field, norm.weight.numpy(), kept)
            if i < L:
                layer[at.WINDOW] = self.config.window(i) or 0
                layer[at.IS_LOCAL] = self.config.window(i) is not None
        return _Tables(products, layers, 1, kept)

    def _modules(self) -> Iterable[list[tuple[str, int]]]:
        """The modules of each layer in the order of its table, then the head's."""
        for projections in self._projections:
            yield [part for projection in projections for part in projection.parts]

    def _tables(self, lora: LoraStack | None, kv: KVCache) -> _Tables:
        tables = self._base
        if lora is not None:
            if lora not in self._of_lists:
                self._of_lists[lora] = self._tables_under(lora)
            tables = self._of_lists[lora]
        tables.layers[:-1, [at.KEY_CACHE, at.VALUE_CACHE]] = kv.addresses
        return tables

    def _tables_under(self, lora: LoraStack) -> _Tables:
        products, layers, kept = self._base.products.copy(), self._base.layers.copy(), [*self._base.kept]
        rank_tiles = 1
        for table, projections in zip(products, self._projections, strict=True):
            row = 0
            for projection in projections:
                change = lora.change(projection.name)
                if change is not None:
                    assert isinstance(change, BlockLowRank)
                    rank_tiles = max(rank_tiles, _set_changes(table[row:], change, kept))
                row += len(projection.parts)
        for i, layer in enumerate(layers):
            for field, norm in self._norms[i]:
                _set(layer, field, norm(lora).numpy(), kept)
        return _Tables(products, layers, rank_tiles, kept)


def _set(row: NDArray[np.int64], field: int, values: NDArray[np.float32], kept: list[object]) -> None:
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    row[field] = values.ctypes.data
    kept.append(values)


def _set_changes(rows: NDArray[np.int64], changes: BlockLowRank, kept: list[object]) -> int:
    """Enter the changes of a product's modules, and return the most tiles of ranks that one has."""
    most = 0
    for row, change in zip(rows, changes.modules, strict=False):
        if change.b is not None:
            row[at.A], row[at.A_TILES], row[at.B] = changes.a_address(change), len(change.tiles), change.b.ctypes.data
            most = max(most, len(change.tiles))
        for field, values in ((at.GAIN, change.gain), (at.OFFSET, change.offset)):
            if values is not None:
                _set(row, field, values, kept)
    kept.append(changes)
    return most


def _norms(config: ModelConfig, loader: WeightLoader) -> list[list[tuple[int, AdaptedNorm]]]:
    """The norms of each layer by their field in its row, then the last norm."""
    norms = []
    for i in range(config.num_layers):
        path = f"model.layers.{i}"
        mlp_norm = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
        own = [
            (at.ATTENTION_NORM, loader.norm(f"{path}.input_layernorm")),
            (at.MLP_NORM, loader.norm(f"{path}.{mlp_norm}")),
        ]
        if config.qk_norm:
            own.append((at.Q_NORM, loader.norm(f"{path}.self_attn.q_norm", config.head_dim)))
            own.append((at.K_NORM, loader.norm(f"{path}.self_attn.k_norm", config.head_dim)))
        if config.sandwich_norms:
            own.append((at.ATTENTION_OUT_NORM, loader.norm(f"{path}.post_attention_layernorm")))
            own.append((at.MLP_OUT_NORM, loader.norm(f"{path}.post_feedforward_layernorm")))
        norms.append(own)
    return [*norms, [(at.ATTENTION_NORM, loader.norm("model.norm"))]]


def _dims(config: ModelConfig) -> Dims:
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    return Dims(
        config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim,
        np.float32(config.rms_norm_eps), np.float32(scale), config.activation == "gelu",
    )  # fmt: skip


def _rotary_table(config: ModelConfig) -> RotaryTable:
    return RotaryTable(rope_frequencies(config), rope_attention_factor(config), torch.device("cpu"))
