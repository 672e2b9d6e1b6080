"""Make a random adapter on all linear layers of a GGUF model of the llama architecture: as a PEFT directory for ours,
and the same one as GGUF files for the peer.

Its values are small, unless told otherwise, so that the text stays the base model's by and large and perplexities can
be compared.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

from model.checkpoint.gguf_names import hf_name
from tests.model.adapter_makers import ALL_LINEAR, Metadata, write_gguf_adapter
from tests.model.tiny import Array, interleave_halves

RANK = 16
FILE_TYPES = ("F32", "F16")
"""Of the peer's files: what its converter writes by default, and half of that."""
_ALPHA = 32
B_DEVIATION = 0.002
"""Of the values of B, where the text is to stay the base model's by and large."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """One adapter, in the forms that the servers read."""

    peft: Path
    gguf: dict[str, Path]
    """By file type."""


def make_adapter(model: Path, folder: Path, seed: int, b_deviation: float = B_DEVIATION) -> AdapterFiles:
    """Write the random adapter of `seed` for a GGUF model to `folder`; `b_deviation` is how much it changes.

    Raises SystemExit for another architecture.
    """
    reader = gguf.GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture != "llama":
        raise SystemExit(f"{model.name} has the architecture {architecture}; adapters are made for llama only")
    num_heads = int(reader.fields["llama.attention.head_count"].contents())
    heads = {"q_proj": num_heads, "k_proj": int(reader.fields["llama.attention.head_count_kv"].contents())}
    shapes = {t.name: (int(t.shape[1]), int(t.shape[0])) for t in reader.tensors if _is_linear(t.name)}
    rng = np.random.default_rng(seed)
    of_peft: dict[str, Array] = {}
    of_gguf: dict[str, Array] = {}
    for name, (num_out, num_in) in sorted(shapes.items()):
        a = rng.normal(0.0, num_in**-0.5, (RANK, num_in)).astype(np.float32)
        b = rng.normal(0.0, b_deviation, (num_out, RANK)).astype(np.float32)
        module = _module(name)
        of_peft[f"base_model.model.{module}.lora_A.weight"] = a
        of_peft[f"base_model.model.{module}.lora_B.weight"] = b
        of_gguf[f"{name}.lora_a"] = a
        part = module.rsplit(".", 1)[1]
        of_gguf[f"{name}.lora_b"] = interleave_halves(b, heads[part]) if part in heads else b
    folder.mkdir(parents=True, exist_ok=True)
    _write_peft(of_peft, folder / f"adapter-{seed}")
    files = {kind: folder / f"adapter-{seed}.{kind}.gguf" for kind in FILE_TYPES}
    for kind, path in files.items():
        write_gguf_adapter(path, _METADATA, of_gguf, kind)
    return AdapterFiles(folder / f"adapter-{seed}", files)


_METADATA: Metadata = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": float(_ALPHA),
}


def _is_linear(name: str) -> bool:
    return name.endswith(".weight") and _module(name).rsplit(".", 1)[-1] in ALL_LINEAR


def _module(name: str) -> str:
    return (hf_name(name) or "").removesuffix(".weight")


def _write_peft(tensors: dict[str, Array], directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": _ALPHA, "target_modules": list(ALL_LINEAR), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
