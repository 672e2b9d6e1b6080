"""What a model's KV depends on beside tokens and adapters: its files, and how they are computed. For KV that is kept
on disk, and must not be read by another model or by other arithmetic, however alike."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from model.backend import Backend
from model.checkpoint.weights import Checkpoint

_CHUNK_BYTES = 2**22


def fingerprint(checkpoint: Checkpoint, backend: Backend) -> dict[str, str]:
    """Return what names the model by its contents, and what names the arithmetic. Reads the whole checkpoint. Raises
    OSError."""
    digest = hashlib.sha256()
    for path in _files(checkpoint.path):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    kernels = (type(backend.ops), type(backend.attention), backend.packed, backend.blocks)
    names = [kind.__name__ if isinstance(kind, type) else str(kind) for kind in kernels]
    device = torch.cuda.get_device_name() if backend.device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        "model": digest.hexdigest(),
        "dtype": str(backend.dtype),
        "device": f"{backend.device.type} {device}",
        "kernels": " ".join([*names, f"torch {torch.__version__}"]),
    }


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that say what a model computes: a GGUF file, or configuration and weights of a directory."""
    if path.is_file():
        yield path
    else:
        yield from (file for file in sorted(path.iterdir()) if file.suffix in (".json", ".safetensors"))
