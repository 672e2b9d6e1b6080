"""The low-rank deltas of a PEFT adapter on linear modules and on stacked experts.

R rank, E experts of a layer, F features of one expert; `in` and `out` are a module's features.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from model.adapters.adapter import BaseWeights, LoraDelta
from model.adapters.dora import measure_dora
from model.adapters.peft_config import PeftConfig
from model.adapters.peft_fields import CONFIG_FILE
from model.adapters.peft_targets import HEAD, Targets
from model.adapters.peft_tensors import WEIGHTS_FILE, Part, PeftTensors
from model.adapters.tensors import AdapterError, NamedTensor

_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.down_proj")
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Takes the deltas out of the tensors of one file."""

    config: PeftConfig
    targets: Targets
    tensors: PeftTensors
    base: BaseWeights

    def linear_deltas(self) -> dict[str, LoraDelta]:
        """Return the deltas of the linear modules by path, but for the head's. Raises AdapterError."""
        deltas = {}
        for module, (out_features, in_features) in self.base.module_shapes.items():
            if module != HEAD and (pair := self.pair(module, out_features, in_features)) is not None:
                deltas[module] = self.delta(pair, module)
        return deltas

    def pair(self, module: str, out_features: int, in_features: int) -> "Pair | None":
        """Return what the file has for a module, None where the config does not target it. Raises AdapterError."""
        key = self.targets.key_of_module(module)
        field = "target_modules"
        if key is None:
            key, field = self.targets.key_of_weight(module), "target_parameters"
        parts = Part.A, Part.B
        if key is None or (self.config.target_modules is None and not self.tensors.has_any(module, *parts)):
            return None
        a, b = self.halves(module, parts, field)
        rank = self.rank(key, a, 0)
        a.check_shape((rank, in_features), "(rank, in)")
        b.check_shape((out_features, rank), "(out, rank)")
        bias = magnitude = None
        if field == "target_modules":
            bias = self._extra(module, Part.LORA_BIAS, self.config.lora_bias, "lora_bias", out_features)
            magnitude = self._extra(module, Part.MAGNITUDE, self.config.use_dora, "use_dora", out_features)
        return Pair(a, b, self.factor(key, b), bias, magnitude)

    def delta(self, pair: "Pair", module: str) -> LoraDelta:
        """Return the delta that a pair is on a module."""
        dora = None
        if pair.magnitude is not None:
            weight, bias = self.base.tensors[f"{module}.weight"], self.base.tensors.get(f"{module}.bias")
            dora = measure_dora(weight, bias, pair.a, pair.b, pair.magnitude, pair.factor)
        bias = None if pair.bias is None else pair.bias.tensor
        return LoraDelta(pair.a.tensor, pair.b.tensor, pair.factor, bias, dora)

    def halves(self, module: str, parts: tuple[Part, Part], field: str) -> tuple[NamedTensor, NamedTensor]:
        """Take the two matrices of a targeted module. Raises AdapterError unless both are there."""
        a, b = (self.tensors.take(module, part) for part in parts)
        if a is not None and b is not None:
            return a, b
        if (present := a or b) is None:
            raise AdapterError(f"{field} in {CONFIG_FILE} names '{module}', but {WEIGHTS_FILE} has no tensor for it")
        missing = parts[1 if a is not None else 0]
        raise AdapterError(f"tensor '{present.name}' has no matching {missing} in the file")

    def rank(self, key: str, a: NamedTensor, dimension: int, multiple: int = 1) -> int:
        """Return the rank that the config gives, which must be A's (times `multiple`). Raises AdapterError."""
        rank = self.targets.rank(key)
        if a.tensor.dim() != 2 or a.tensor.shape[dimension] != rank * multiple:
            raise AdapterError(
                f"tensor '{a.name}' has shape {tuple(a.tensor.shape)}, by {CONFIG_FILE} dimension {dimension} should "
                f"be the rank {rank}" + (f" times {multiple} experts" if multiple > 1 else "")
            )
        return rank

    def factor(self, key: str, b: NamedTensor) -> float:
        """Return the config's factor. Raises AdapterError where it makes the values of B too large."""
        factor = self.targets.factor(key)
        if b.tensor.numel() and abs(factor) * float(b.tensor.abs().max()) > _LARGEST:
            raise AdapterError(f"tensor '{b.name}' is too large for its factor alpha / rank = {factor}")
        return factor

    def _extra(self, module: str, part: Part, is_wanted: bool, field: str, size: int) -> NamedTensor | None:
        if not is_wanted:
            return None
        found = self.tensors.take(module, part)
        if found is None:
            raise AdapterError(f"{field} is true in {CONFIG_FILE}, but {WEIGHTS_FILE} has no {part} of '{module}'")
        found.check_shape((size,), "(out,)")
        return found

    def expert_deltas(self) -> dict[str, LoraDelta]:
        """Return the deltas of parameters that hold all experts of a layer, by expert. Raises AdapterError."""
        deltas: dict[str, LoraDelta] = {}
        for path, count in self._stacks():
            keys = {name: self.targets.key_of_stack(f"{path}.{name}") for name in ("gate_up_proj", "down_proj")}
            # PEFT wraps the module once for each parameter, the first one innermost.
            is_nested = all(key is not None for key in keys.values())
            for name, key in keys.items():
                if key is not None:
                    parts = (Part.INNER_A, Part.INNER_B) if is_nested and name == "gate_up_proj" else (Part.A, Part.B)
                    deltas.update(self._stacked(path, count, name, key, parts))
        return deltas

    def _stacks(self) -> Iterator[tuple[str, int]]:
        counts: dict[str, int] = {}
        for match in filter(None, map(_EXPERT.fullmatch, self.base.module_shapes)):
            counts[match[1]] = counts.get(match[1], 0) + 1
        yield from counts.items()

    def _stacked(
        self, path: str, count: int, name: str, key: str, parts: tuple[Part, Part]
    ) -> Iterator[tuple[str, LoraDelta]]:
        """Yield each expert's share of A (E · R, in) and B (out, R · E): A has the experts outside, B inside."""
        names = ("gate_proj", "up_proj") if name == "gate_up_proj" else (name,)
        out_features, in_features = self.base.module_shapes[f"{path}.0.{names[0]}"]
        a, b = self.halves(path, parts, "target_parameters")
        rank = self.rank(key, a, 0, count)
        a.check_shape((rank * count, in_features), "(experts · rank, in)")
        b.check_shape((out_features * len(names), rank * count), "(out, rank · experts)")
        factor = self.factor(key, b)
        every_a = a.tensor.reshape(count, rank, in_features)  # (E, R, in)
        every_b = b.tensor.reshape(-1, rank, count).permute(2, 0, 1).contiguous()  # (E, out, R)
        for expert in range(count):
            for i, part in enumerate(names):
                rows = every_b[expert, i * out_features : (i + 1) * out_features]
                yield f"{path}.{expert}.{part}", LoraDelta(every_a[expert], rows, factor)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a file has for one linear module, its shapes checked."""

    a: NamedTensor  # (R, in)
    b: NamedTensor  # (out, R)
    factor: float
    bias: NamedTensor | None  # (out,)
    magnitude: NamedTensor | None  # (out,)
