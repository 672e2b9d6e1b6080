"""Random adapters for the tiny models: PEFT directories that PEFT itself writes, and the same adapters as GGUF files.

PEFT is the oracle: `attach` puts the written directories on a transformers model, `set_scales` gives each one its scale.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from model.adapter_peft_config import read_peft_config
from model.lora import Projection
from tests.model.tiny import interleave_halves

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")

_GGUF_NAMES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def make_peft_adapter(base: PreTrainedModel, directory: Path, config: LoraConfig, seed: int = 1) -> Path:
    """Write a random adapter for `base` as PEFT saves it; every A and B is random, so that nothing is a no-op."""
    model = get_peft_model(copy.deepcopy(base), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(directory)
    return directory


def attach(base: PreTrainedModel, directories: Mapping[str, Path]) -> PeftModel:
    """Return a copy of `base` with all adapters active, each under its name, at scale 1."""
    (first, path), *others = directories.items()
    model = PeftModel.from_pretrained(copy.deepcopy(base), path, adapter_name=first)
    for name, path in others:
        model.load_adapter(path, adapter_name=name)
    model.base_model.set_adapter(list(directories))
    return model.eval()


def set_scales(model: PeftModel, scales: Mapping[str, float]) -> None:
    """Apply each adapter at its scale; one that is not named keeps what it has."""
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name, scale in scales.items():
                if name in module.scaling:
                    module.set_scale(name, scale)


def edit_config(directory: Path, changes: Mapping[str, object]) -> None:
    """Change fields of the adapter_config.json in a directory."""
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes)))


def write_weights(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace the tensors of a PEFT directory."""
    save_file(dict(tensors), directory / "adapter_model.safetensors")


def projections_of(base: PreTrainedModel) -> tuple[Projection, ...]:
    """Return the decoder's fused projections, by the shapes of transformers' modules."""
    shapes = module_shapes_of(base)
    fused = {"qkv": ATTENTION[:3], "o": ("o_proj",), "gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
    projections = []
    for layer in range(base.config.num_hidden_layers):
        for name, modules in fused.items():
            paths = [_path(layer, module) for module in modules]
            parts = tuple((path, shapes[path][0]) for path in paths)
            projections.append(Projection(f"layers.{layer}.{name}", shapes[paths[0]][1], parts))
    return tuple(projections)


def module_shapes_of(base: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """Return (out, in) of every linear module of the layers."""
    return {
        name: (module.out_features, module.in_features)
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }


def convert_to_gguf(
    base: PreTrainedModel,
    directory: Path,
    path: Path,
    *,
    file_type: str = "F32",
    alpha: float | None = None,
    texts: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write a PEFT adapter as llama.cpp's converter would; `alpha` replaces the config's, `texts` adds metadata."""
    lora_alpha = read_peft_config(directory).alpha if alpha is None else alpha
    writer = adapter_writer(base, path, lora_alpha)
    for key, text in texts:
        writer.add_string(key, text)
    for name, values in gguf_adapter_tensors(base, directory).items():
        quant = gguf.GGMLQuantizationType[file_type]
        writer.add_tensor(name, gguf.quantize(values, quant), raw_dtype=quant)
    finish(writer)
    return path


def gguf_adapter_tensors(base: PreTrainedModel, directory: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Return an adapter's matrices under GGUF's names, B of q and k in llama.cpp's row order where it has one."""
    heads = {"q_proj": base.config.num_attention_heads, "k_proj": base.config.num_key_value_heads}
    tensors = {}
    for name, values in load_file(directory / "adapter_model.safetensors").items():
        *_, layer, _, module, half, _ = name.split(".")
        if half == "lora_B" and module in heads and base.config.model_type in ("llama", "mistral"):
            values = interleave_halves(values, heads[module])
        tensors[f"blk.{layer}.{_GGUF_NAMES[module]}.weight.{half.lower()}"] = values
    return tensors


def adapter_writer(base: PreTrainedModel, path: Path, alpha: float) -> gguf.GGUFWriter:
    """Begin a GGUF adapter file for `base` with the metadata that every one has."""
    arch = {"mistral": "llama"}.get(base.config.model_type, base.config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file to disk."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _path(layer: int, module: str) -> str:
    block = "self_attn" if module in ATTENTION else "mlp"
    return f"model.layers.{layer}.{block}.{module}"
