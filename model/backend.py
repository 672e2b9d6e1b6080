"""Which device, dtype and kernels compute the model. Decides once, at start; knows no weights.

Products of integers (`int8`) are the fastest on CPUs. They keep the codes of a checkpoint that is quantised in blocks;
other weights they quantise, which is for the operator to choose.
"""

import platform
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from model.attention import Attention, DenseAttention
from model.attention_flash import AttentionUnavailable, cuda_attention
from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import Checkpoint
from model.cpu.attention import PagedAttention
from model.cpu.block_weight import BLOCK
from model.cpu.jit import compiles_for
from model.cpu.kernels import CpuOps
from model.layers import Ops, TorchOps

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BLOCKS = "int8"


class BackendError(ValueError):
    """This machine cannot compute what was asked for. The message names it and says what would work."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One consistent choice of device, dtype and kernels."""

    device: torch.device
    dtype: torch.dtype
    """Of weights, activations and KV cache; the residual stream and the norms' weights are float32 whatever it is. With
    `blocks` of the KV cache alone."""
    ops: Ops
    head_ops: Ops
    """For the last norm: their dtype is the head's. float32 on CPUs, since logits rounded to bfloat16 often tie, and
    greedy answers with them; it costs a millisecond a step."""
    attention: Attention
    packed: bool
    """Whether matrix products run on oneDNN's prepacked weights, which treat a row alike in every batch."""
    blocks: bool = False
    """Whether the products of layers and head are those of cpu/block_products.py. What is left for `ops`, `head_ops`
    and `packed` is what adapters change in embedding and head."""

    def in_head_dtype(self) -> "Backend":
        """Return the backend that computes the head: this one in the head's dtype."""
        return replace(self, dtype=self.head_ops.dtype, ops=self.head_ops)


def choose_backend(device: str = "auto", dtype: str = "auto", checkpoint: Checkpoint | None = None) -> Backend:
    """Return the fastest backend that is right on this machine, for a checkpoint where one is given.

    device: auto, cpu or cuda; dtype: auto, float32, bfloat16, float16, or int8, which needs a checkpoint: products of
    integers on a CPU. Raises BackendError.
    """
    if dtype not in ("auto", *_DTYPES, _BLOCKS):
        raise BackendError(f"dtype is {dtype!r}, choose auto, {', '.join(_DTYPES)}, {_BLOCKS}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    match device:
        case "cpu":
            return _cpu_backend(dtype, checkpoint)
        case "cuda":
            return _cuda_backend(dtype)
    raise BackendError(f"device is {device!r}, choose auto, cpu or cuda")


def reference_backend(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Backend:
    """Return the slow backend in plain torch that the others are compared with."""
    head_ops = TorchOps(torch.float32)
    return Backend(torch.device(device), dtype, TorchOps(dtype), head_ops, DenseAttention(), packed=False)


def _cpu_backend(name: str, checkpoint: Checkpoint | None) -> Backend:
    # Elsewhere oneDNN's blocked products have not been measured.
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    packed = has_onednn and platform.machine().lower() in ("x86_64", "amd64")
    blocks = name == _BLOCKS or (name == "auto" and checkpoint is not None and _prefers_blocks(checkpoint))
    if blocks:
        obstacle = "no checkpoint is given" if checkpoint is None else _obstacle_to_blocks(checkpoint.config)
        if obstacle is not None:
            raise BackendError(f"dtype {_BLOCKS} cannot be computed: {obstacle}; choose auto, float32 or bfloat16")
        dtype = torch.bfloat16
    elif name == "auto":
        dtype = torch.bfloat16 if packed and _multiplies_bfloat16() else torch.float32
    else:
        dtype = _DTYPES[name]
    if dtype == torch.float16:
        raise BackendError("dtype float16 is not computed on cpu, choose auto, float32 or bfloat16")
    if dtype == torch.bfloat16 and packed and not blocks and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise BackendError("dtype bfloat16 needs AVX-512 on cpu, choose auto or float32")
    return Backend(torch.device("cpu"), dtype, CpuOps(dtype), CpuOps(torch.float32), PagedAttention(), packed, blocks)


def _prefers_blocks(checkpoint: Checkpoint) -> bool:
    """Whether products of integers are faster, and lose nothing that the checkpoint has."""
    return checkpoint.is_block_quantised and _obstacle_to_blocks(checkpoint.config) is None


def _obstacle_to_blocks(config: ModelConfig) -> str | None:
    """Return why this machine cannot compute the model with products of integers; None where it can."""
    if not compiles_for("avx512vnni"):
        return "the CPU has no AVX-512 VNNI"
    if any(config.experts_of(i) is not None for i in range(config.num_layers)):
        return "the model is a mixture of experts"
    inputs = {
        "hidden size": config.hidden_size,
        "intermediate size": config.intermediate_size,
        "width of attention": config.num_heads * config.head_dim,
    }
    for name, size in inputs.items():
        if size % BLOCK:
            return f"the model's {name}, {size}, is no multiple of {BLOCK}"
    return None


def _cuda_backend(name: str) -> Backend:
    if not torch.cuda.is_available():
        raise BackendError(
            "device is 'cuda', but torch finds no CUDA device: choose cpu, or install a CUDA build of torch"
        )
    if name == _BLOCKS:
        raise BackendError(f"dtype {_BLOCKS} is not computed on cuda, choose auto, {', '.join(_DTYPES)}")
    device = torch.device("cuda")
    best = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    dtype = best if name == "auto" else _DTYPES[name]
    if dtype == torch.float32:  # flash kernels have half precision only
        return reference_backend(dtype, "cuda")
    try:
        ops = TorchOps(dtype)
        return Backend(device, dtype, ops, ops, cuda_attention(device, dtype), packed=False)
    except AttentionUnavailable as error:
        raise BackendError(f"device 'cuda' with dtype {dtype}: {error}; float32 needs none of them") from error


def _multiplies_bfloat16() -> bool:
    """Whether the CPU has bfloat16 products in hardware, which make them twice as fast as float32's, not slower."""
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return not words.isdisjoint({"avx512_bf16", "amx_bf16"})
