"""Load a checkpoint: its configuration, and its tensors under one set of names, whatever kind of files it comes in.

Everything that is peculiar to a format ends here; the decoder sees Hugging Face's names and shapes. Tensors are read
when they are asked for, so that a model larger than the memory left beside it can be packed one matrix at a time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import torch

from model.checkpoint.config import CheckpointError, ModelConfig
from model.checkpoint.config_gguf import config_from_gguf, rows_are_interleaved
from model.checkpoint.config_hf import config_from_hf, is_multimodal
from model.checkpoint.fields import Fields, read_json_object
from model.checkpoint.gguf import GgufFile, GgufValue, is_gguf, read_gguf
from model.checkpoint.gguf_names import GgufWeights
from model.checkpoint.module_names import is_vision
from model.checkpoint.safetensors_weights import SafetensorsWeights
from model.checkpoint.tensor_shapes import check_tensors, tensor_shapes


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk whose tensors are all there and have the right shapes."""

    path: Path
    """The directory, or the GGUF file."""
    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    """Exactly the names of `tensor_shapes(config)`. From GGUF float32, from safetensors as stored; read on access."""
    format: Literal["gguf", "safetensors"]
    file_type: str
    """How most of the weights are stored: Q4_1, BF16, …"""
    num_parameters: int
    num_bytes: int
    """Bytes that the tensors take on disk."""
    gguf: Mapping[str, GgufValue] | None
    """The GGUF file's metadata."""
    eog_ids: frozenset[int]
    """The tokens that the checkpoint's metadata says end generation; the tokenizer may know more."""

    @property
    def is_block_quantised(self) -> bool:
        """Whether most bytes of the layers' matrices are codes that `load_blocks` keeps (gguf_names.py)."""
        return isinstance(self.tensors, GgufWeights) and self.tensors.is_block_quantised


def load_checkpoint(path: Path) -> Checkpoint:
    """Open a directory with config.json and safetensors (or one of those files), or a GGUF file.

    Raises CheckpointError naming the file and the field or tensor that is missing, damaged or not supported.
    """
    if path.is_file() and is_gguf(path):
        return _load_gguf(path)
    directory = path.parent if path.is_file() and path.suffix in (".json", ".safetensors") else path
    if not directory.exists():
        raise CheckpointError(f"{path}: there is no such file or directory")
    if not directory.is_dir():
        raise CheckpointError(f"{path}: neither a GGUF file nor a directory with config.json and safetensors files")
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{directory}: there is no config.json{_hint(directory)}")
    return _load_directory(directory)


def _load_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    config = config_from_gguf(file)
    weights = GgufWeights(file, config, is_interleaved=rows_are_interleaved(file))
    check_tensors(weights.shapes, config, str(path))
    fields = Fields(file.metadata, str(path))
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return Checkpoint(
        path=path,
        config=config,
        tensors=weights,
        format="gguf",
        file_type=_gguf_file_type(file),
        num_parameters=_num_parameters(config),
        num_bytes=weights.num_bytes,
        gguf=file.metadata,
        eog_ids=frozenset().union(*(_token_ids(fields, key, config.vocab_size) for key in keys)),
    )


def _load_directory(directory: Path) -> Checkpoint:
    path = directory / "config.json"
    values = read_json_object(path)
    config = config_from_hf(values, str(path))
    weights = SafetensorsWeights(directory)
    if is_multimodal(values):
        for name in [name for name in weights if is_vision(name)]:
            weights.leave_out(name)
    if config.tied_embeddings and "lm_head.weight" in weights:
        _leave_out_tied_head(weights, directory)
    check_tensors(weights.shapes, config, str(directory))
    for name in set(weights) - {name for name, _ in tensor_shapes(config)}:
        weights.leave_out(name)
    eog_ids = _token_ids(Fields(values, str(path)), "eos_token_id", config.vocab_size)
    if (generation := directory / "generation_config.json").is_file():
        fields = Fields(read_json_object(generation), str(generation))
        eog_ids |= _token_ids(fields, "eos_token_id", config.vocab_size)
    bytes_by_type = weights.bytes_by_type()
    return Checkpoint(
        path=directory,
        config=config,
        tensors=weights,
        format="safetensors",
        file_type=max(bytes_by_type, key=lambda name: bytes_by_type[name]),
        num_parameters=_num_parameters(config),
        num_bytes=sum(bytes_by_type.values()),
        gguf=None,
        eog_ids=eog_ids,
    )


def _leave_out_tied_head(weights: SafetensorsWeights, directory: Path) -> None:
    """Accept a copy of the embeddings as output matrix; where the two differ, tying them would change the output."""
    embeddings, head = weights.get("model.embed_tokens.weight"), weights["lm_head.weight"]
    if embeddings is None or embeddings.dtype != head.dtype or not torch.equal(embeddings, head):
        raise CheckpointError(
            f"{directory}: tie_word_embeddings is true, but tensor lm_head.weight differs from "
            "model.embed_tokens.weight; it must be false, or the tensor must go"
        )
    weights.leave_out("lm_head.weight")


def _token_ids(fields: Fields, name: str, vocab_size: int) -> frozenset[int]:
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise fields.error(name, f"token ids from 0 to {vocab_size - 1} are needed")
    return frozenset(ids)


def _gguf_file_type(file: GgufFile) -> str:
    """Return the name that the file gives itself, else the type that most of its bytes have."""
    number = file.metadata.get("general.file_type")
    if isinstance(number, int) and number in list(gguf.LlamaFileType):
        return str(gguf.LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    bytes_by_type: dict[str, int] = {}
    for tensor in file.tensors.values():
        bytes_by_type[tensor.type_name] = bytes_by_type.get(tensor.type_name, 0) + tensor.num_bytes
    return max(bytes_by_type, key=lambda name: bytes_by_type[name])


def _num_parameters(config: ModelConfig) -> int:
    return sum(math.prod(shape) for _, shape in tensor_shapes(config))


def _hint(directory: Path) -> str:
    if (directory / "adapter_config.json").is_file():
        return "; adapter_config.json says that this is an adapter, not a model"
    if files := sorted(path.name for path in directory.glob("*.gguf")):
        return f"; to load the GGUF file, name it: {directory / files[0]}"
    return ""
