"""What runs a model, whichever decoder computes it, and which one does on a backend."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from model.attention import AttentionStep
from model.backend import Backend
from model.block_decoder import BlockDecoder
from model.checkpoint.config import ModelConfig
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora import Adaptable, LoraStack, Projection
from model.outputs import Outputs, Wanted


class LanguageModel(Protocol):
    """A model ready to run on one backend: token ids and paged KV in, logits or hidden states out."""

    config: ModelConfig
    backend: Backend
    projections: tuple[Projection, ...]
    """The matrix products that adapters can touch."""
    module_shapes: Mapping[str, tuple[int, int]]
    """(out, in) of each module that adapters can touch, by its path."""
    adaptable: Adaptable

    def forward(
        self, token_ids: Tensor, step: AttentionStep, wanted: Wanted, kv: KVCache, lora: LoraStack | None
    ) -> Outputs:
        """Compute one step, write its keys and values to `kv`, and return what is wanted of its tokens.

        token_ids (T,) int64; lora None is the base model.
        """
        ...


def load_language_model(config: ModelConfig, tensors: Mapping[str, Tensor], backend: Backend) -> LanguageModel:
    """Lay out the weights of a checked checkpoint for a backend, one tensor at a time. Raises CheckpointError."""
    decoder = BlockDecoder if backend.blocks else Decoder
    return decoder(config, tensors, backend)
