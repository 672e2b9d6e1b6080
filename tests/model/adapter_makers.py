"""Random adapters for the tiny models: PEFT directories that PEFT itself writes, and the same adapters as GGUF files.

PEFT is the oracle: `attach` puts the written directories on a transformers model, `set_scales` scales each of them.
"""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import gguf
import safetensors.numpy
import safetensors.torch
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import PreTrainedModel

from model.adapters.adapter import BaseWeights
from model.adapters.peft_config import read_peft_config
from model.checkpoint.weights import load_checkpoint
from model.decoder_weights import head_projection, layer_projections
from tests.model.tiny import Array, architecture, interleave_halves

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
Metadata: TypeAlias = Mapping[str, str | float | list[int]]

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


def make_peft_adapter(
    base: PreTrainedModel, directory: Path, config: LoraConfig, *, seed: int = 1, dtype: torch.dtype = torch.float32
) -> Path:
    """Write a random adapter for `base` as PEFT saves it; all that is trained is random, so that nothing is a no-op."""
    model = get_peft_model(copy.deepcopy(base), config)
    randomise(model, seed)
    model.to(dtype).save_pretrained(directory)
    return directory


def randomise(model: PeftModel, seed: int) -> None:
    """Give all that its adapter trains new values: A and B, magnitudes, biases, saved modules, rows of tokens."""
    generator = torch.Generator().manual_seed(seed)
    trains_biases = model.peft_config["default"].bias != "none"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "lora_magnitude_vector" in name:
                parameter.mul_(1 + 0.3 * noise)
            elif "lora_" in name:
                parameter.copy_(0.2 * noise)
            elif "modules_to_save" in name or "trainable_tokens_delta" in name:
                parameter.add_(0.5 * parameter.std() * noise)
            elif trains_biases and name.endswith(".bias"):
                parameter.add_(0.3 * noise)


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


def edit_tensors(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Let `edit` change the tensors of a PEFT directory, a dictionary by full name."""
    path = directory / "adapter_model.safetensors"
    tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    edit(tensors)
    safetensors.torch.save_file(tensors, path)


def base_weights(directory: Path) -> BaseWeights:
    """Return the model that `make_model` wrote to a directory, as adapters are loaded for it."""
    checkpoint = load_checkpoint(directory)
    config = checkpoint.config
    projections = [
        *(p for i in range(config.num_layers) for p in layer_projections(config, i)),
        head_projection(config),
    ]
    shapes = {module: (out, p.in_features) for p in projections for module, out in p.parts}
    return BaseWeights(config, shapes, checkpoint.tensors)


def convert_to_gguf(
    base: PreTrainedModel,
    directory: Path,
    path: Path,
    *,
    file_type: str = "F32",
    alpha: float | None = None,
) -> Path:
    """Write a PEFT adapter as llama.cpp's converter would; `alpha` replaces the config's."""
    tensors = gguf_adapter_tensors(base, directory)
    config = read_peft_config(directory)
    metadata: Metadata = {
        **adapter_metadata(base),
        "adapter.lora.alpha": config.alpha if alpha is None else alpha,
        "adapter.alora.invocation_tokens": list(config.invocation_tokens),
    }
    return write_gguf_adapter(path, metadata, tensors, file_type)


def gguf_adapter_tensors(base: PreTrainedModel, directory: Path) -> dict[str, Array]:
    """Return an adapter's matrices under GGUF's names, B of q and k in llama.cpp's row order where it has one."""
    heads = {"q_proj": base.config.num_attention_heads, "k_proj": base.config.num_key_value_heads}
    tensors = {}
    for name, values in safetensors.numpy.load_file(directory / "adapter_model.safetensors").items():
        *_, layer, _, module, half, _ = name.split(".")
        if half == "lora_B" and module in heads and base.config.model_type in ("llama", "mistral"):
            values = interleave_halves(values, heads[module])
        tensors[f"blk.{layer}.{_GGUF_NAMES[module]}.weight.{half.lower()}"] = values
    return tensors


def adapter_metadata(base: PreTrainedModel) -> Metadata:
    """Return the metadata that every GGUF adapter for `base` has."""
    return {"general.type": "adapter", "general.architecture": architecture(base), "adapter.type": "lora"}


def write_gguf_adapter(path: Path, metadata: Metadata, tensors: Mapping[str, Array], file_type: str = "F32") -> Path:
    """Write a GGUF file with exactly this metadata and these tensors."""
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            element = gguf.GGUFValueType.UINT32 if all(item >= 0 for item in value) else gguf.GGUFValueType.INT32
            if value:
                writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, element)
        elif key != "general.architecture":  # the writer has added it
            writer.add_string(key, value)
    quant = gguf.GGMLQuantizationType[file_type]
    for name, values in tensors.items():
        writer.add_tensor(name, gguf.quantize(values, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
