"""Load a decoder's layers smoothed: each goes through a calibration text as it is, and is laid out with its outliers
moved into the weights.

One layer at a time, so that the peak of memory stays near the size of the weights as they will be used. The factors are
model/smoothing.py's, what they rest on is model/calibration.py's; here is which weights they are multiplied into.

H query heads, K KV heads, h head size, D hidden, F MLP.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from model.backend import Backend, BackendError
from model.calibration import CalibrationRun
from model.config import ModelConfig
from model.decoder_weights import Layer, WeightLoader, layer_projections, mlp_norm_module
from model.lora import Projection
from model.smoothing import (
    Smoothing,
    balance,
    column_ranges,
    merged,
    repeat_for_query_heads,
    share_by_kv_head,
)


def load_layers(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    backend: Backend,
    embedding: Tensor,
    calibration: Sequence[Sequence[int]],
) -> tuple[list[Layer], Smoothing]:
    """Load all layers, and say how they are smoothed: not at all without `calibration`, prompts as token ids.

    embedding (V or more, D) in the backend's dtype, unscaled. Raises BackendError for what int8 does not cover.
    """
    if backend.int8 and config.experts is not None:
        raise BackendError(f"dtype int8 does not cover mixtures of experts ({config.family}), choose auto or bfloat16")
    if not calibration:
        loader = WeightLoader(config, tensors, backend)
        return [loader.layer(i) for i in range(config.num_layers)], Smoothing()
    assert config.experts is None
    run = CalibrationRun(config, backend.without_int8(), embedding, calibration)
    layers, smoothings = [], []
    for i in range(config.num_layers):
        own = {name: tensors[name] for name in tensors if name.startswith(f"model.layers.{i}.")}
        ranges = run.advance(WeightLoader(config, own, backend.without_int8()).layer(i))
        smoothing = _smoothing(config, i, ranges, own)
        layers.append(WeightLoader(config, smoothed_tensors(config, i, own, smoothing), backend).layer(i))
        smoothings.append(smoothing)
    return layers, merged(smoothings)


def _smoothing(config: ModelConfig, i: int, ranges: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Smoothing:
    qkv, o, gate_up, down = layer_projections(config, i)

    def columns(projection: Projection) -> Tensor:
        return column_ranges(tensors[f"{module}.weight"] for module, _ in projection.parts)

    H, K, h = config.num_heads, config.num_kv_heads, config.head_dim
    to_qkv = balance(ranges[qkv.name], columns(qkv))  # (D,)
    to_gate_up = balance(ranges[gate_up.name], columns(gate_up))  # (D,)
    to_down = balance(ranges[down.name], columns(down))  # (F,)
    values = balance(share_by_kv_head(ranges[o.name], K, h), share_by_kv_head(columns(o), K, h))  # (K · h,)
    return Smoothing(
        inputs={
            qkv.name: to_qkv,
            o.name: repeat_for_query_heads(values, H, K),
            gate_up.name: to_gate_up,
            down.name: to_down,
        },
        outputs={
            qkv.name: torch.cat((torch.ones((H + K) * h), values)),
            gate_up.name: torch.cat((torch.ones(len(to_down)), to_down)),
        },
        norms={f"model.layers.{i}.input_layernorm": to_qkv, mlp_norm_module(config, i): to_gate_up},
    )


def smoothed_tensors(
    config: ModelConfig, i: int, tensors: Mapping[str, Tensor], smoothing: Smoothing
) -> dict[str, Tensor]:
    """Return the tensors of layer i with its smoothing folded in, in float32 where it changes them."""
    result = dict(tensors)
    for module, factors in smoothing.norms.items():
        name, offset = f"{module}.weight", config.norm_offset
        result[name] = (tensors[name].float() + offset) / factors - offset
    for projection in layer_projections(config, i):
        inputs, outputs = smoothing.inputs[projection.name], smoothing.outputs.get(projection.name)
        row = 0
        for module, size in projection.parts:
            weight, bias = f"{module}.weight", f"{module}.bias"
            result[weight] = tensors[weight].float() * inputs
            if outputs is not None:
                own = outputs[row : row + size]
                result[weight] /= own.unsqueeze(1)
                if bias in tensors:
                    result[bias] = tensors[bias].float() / own
            row += size
    return result
