"""What each tensor of a GGUF adapter changes: its name, its shape, and the order of its rows.

Pairs `NAME.lora_a`, `NAME.lora_b` adapt the base tensor NAME: a matrix; the embedding, whose A the converter
transposes; or the experts of a layer, stacked. `…_norm.weight` replaces a norm: upstream skips it without a word, here
it is honoured. Shapes are checked before a tensor is read, all that upstream checks, in its words, and the ranks of the
embedding and the number of experts as well. On a tied model `output.weight` is a head of its own, as it is for PEFT;
upstream knows none there. Source: section "add tensors" of llama.cpp's src/llama-adapter.cpp.

R rank, E experts, D hidden, V vocabulary; `in` and `out` are a module's features. Shapes are numpy's, slowest first.
"""

import re
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from model.adapters.adapter import BaseWeights, EmbeddingDelta, LoraDelta
from model.adapters.tensors import AdapterError
from model.checkpoint.gguf import GgufFile
from model.checkpoint.gguf_names import hf_name, separate_halves

Shape: TypeAlias = tuple[int | None, ...]

_EMBEDDING = "token_embd.weight"
_EXPERTS = re.compile(r"blk\.(0|[1-9]\d*)\.ffn_(gate|up|down)_exps\.weight")
_HALF = re.compile(r"(?P<base>.+)\.(?P<half>lora_[ab])", re.DOTALL)
_INTERLEAVED = ("llama", "mistral", "mixtral")
"""Families whose converter reorders the output rows of queries and keys, and so those of B."""
_WRONG_BASE = "(hint: maybe wrong base model?)"


@dataclass(slots=True)
class GgufAdapterTensors:
    """All that the tensors of an adapter change."""

    deltas: dict[str, LoraDelta] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    embedding: EmbeddingDelta | None = None


def place_tensors(file: GgufFile, alpha: float, base: BaseWeights) -> GgufAdapterTensors:
    """Read and place every tensor of the file. Raises AdapterError naming the first that cannot be."""
    pairs, norms = _names(file)
    if not pairs and not norms:
        raise AdapterError(f"{file.path} holds no LoRA tensors")
    reader = _Reader(file, alpha, base)
    found = GgufAdapterTensors()
    for name in pairs:
        if name == _EMBEDDING:
            found.embedding = reader.embedding()
        elif match := _EXPERTS.fullmatch(name):
            found.deltas.update(reader.experts(name, int(match[1]), f"{match[2]}_proj"))
        else:
            module, delta = reader.linear(name)
            found.deltas[module] = delta
    for name in norms:
        module, difference = reader.norm(name)
        found.norms[module] = difference
    return found


def _names(file: GgufFile) -> tuple[list[str], list[str]]:
    """Return the base tensors that have a pair, and the norms, sorted."""
    pairs: dict[str, set[str]] = {}
    norms = []
    for name in file.tensors:
        if match := _HALF.fullmatch(name):
            pairs.setdefault(match["base"], set()).add(match["half"])
        elif name.endswith("_norm.weight"):
            norms.append(name)
        else:
            raise AdapterError(
                f"LoRA tensor '{name}' has unexpected suffix: known are .lora_a, .lora_b, and _norm.weight of norms"
            )
    for name, halves in pairs.items():
        if len(halves) == 1:
            missing = "lora_b" if "lora_a" in halves else "lora_a"
            raise AdapterError(
                f"LoRA tensor pair for '{name}' is missing one component: there is no '{name}.{missing}'"
            )
    return sorted(pairs), sorted(norms)


class _Reader:
    """Reads the tensors of one file for one base model."""

    def __init__(self, file: GgufFile, alpha: float, base: BaseWeights) -> None:
        self._file = file
        self._alpha = alpha
        self._base = base

    def linear(self, name: str) -> tuple[str, LoraDelta]:
        """Return the module that a base tensor is the weight of, and its delta."""
        module = self._module(name)
        out_features, in_features = self._base.module_shapes[module]
        self._check_shapes(name, (None, in_features), (out_features, None))
        a, b = self._pair(name)  # (R, in), (out, R)
        config = self._base.config
        if config.family in _INTERLEAVED:
            num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(module.rpartition(".")[2])
            b = b if num_heads is None else separate_halves(b, num_heads)
        return module, LoraDelta(a, b, self._factor(name, b))

    def experts(self, name: str, layer: int, projection: str) -> dict[str, LoraDelta]:
        """Return the deltas of one projection of all experts of a layer, by module."""
        modules: list[str] = []
        while (module := f"model.layers.{layer}.mlp.experts.{len(modules)}.{projection}") in self._base.module_shapes:
            modules.append(module)
        if not modules:
            raise AdapterError(f"LoRA tensor '{name}' does not exist in base model {_WRONG_BASE}")
        E, (out_features, in_features) = len(modules), self._base.module_shapes[modules[0]]
        self._check_shapes(name, (E, None, in_features), (E, out_features, None))
        a, b = self._pair(name)  # (E, R, in), (E, out, R)
        factor = self._factor(name, b)
        return {module: LoraDelta(a[e], b[e], factor) for e, module in enumerate(modules)}

    def embedding(self) -> EmbeddingDelta:
        """Return the delta of the embedding."""
        V, D = self._base.config.vocab_size, self._base.config.hidden_size
        self._check_shapes(_EMBEDDING, (V, None), (D, None))
        a, b = self._pair(_EMBEDDING)  # (V, R), (D, R)
        return EmbeddingDelta(a, b, self._factor(_EMBEDDING, b))

    def norm(self, name: str) -> tuple[str, Tensor]:
        """Return the module of a norm, and its weight in the file minus the base model's."""
        config = self._base.config
        weight_name = hf_name(name, sandwich_norms=config.sandwich_norms)
        if weight_name is None or weight_name not in self._base.tensors:
            raise AdapterError(f"LoRA tensor '{name}' does not exist in base model {_WRONG_BASE}")
        weight = self._base.tensors[weight_name].float()
        shape = self._file.tensors[name].shape
        if shape != tuple(weight.shape):
            raise AdapterError(
                f"tensor '{name}' has incorrect shape {_WRONG_BASE}: it is {shape}, the base model's is "
                f"{tuple(weight.shape)}"
            )
        difference = self._read(name).float() - config.norm_offset - weight
        return weight_name.removesuffix(".weight"), difference

    def _module(self, name: str) -> str:
        own = hf_name(name)
        module = own.removesuffix(".weight") if own is not None and own.endswith(".weight") else None
        if module is None or module not in self._base.module_shapes:
            raise AdapterError(
                f"LoRA tensor '{name}' does not exist in base model as the weight of a linear module {_WRONG_BASE}"
            )
        return module

    def _check_shapes(self, name: str, wanted_a: Shape, wanted_b: Shape) -> None:
        """Compare the shapes of A and B with those wanted; None stands for the rank, which must be the same in both."""
        a, b = (self._file.tensors[f"{name}.{half}"].shape for half in ("lora_a", "lora_b"))
        found = f"lora_a is {a}, lora_b is {b}"
        if not (_fits(a, wanted_a) and _fits(b, wanted_b)):
            wanted = f"{wanted_a} and {wanted_b}".replace("None", "rank")
            raise AdapterError(f"tensor '{name}' has incorrect shape {_WRONG_BASE}: {found}, wanted are {wanted}")
        if a[wanted_a.index(None)] != b[wanted_b.index(None)]:
            raise AdapterError(
                f'lora_a tensor is not transposed (hint: adapter from "finetune" example is no longer supported): '
                f"the ranks of '{name}' differ, {found}"
            )

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self._read(f"{name}.lora_a"), self._read(f"{name}.lora_b")

    def _read(self, name: str) -> Tensor:
        tensor = self._file.read_compact(name)
        if not bool(torch.isfinite(tensor).all()):
            raise AdapterError(f"tensor '{name}' contains NaN or infinity")
        return tensor

    def _factor(self, name: str, b: Tensor) -> float:
        """Return alpha / rank, and 1 where there is no alpha, as upstream does; `b` is (…, R)."""
        factor = self._alpha / b.shape[-1] if self._alpha else 1.0
        if abs(factor) * float(b.abs().max()) > torch.finfo(torch.float32).max:
            raise AdapterError(f"tensor '{name}.lora_b' is too large for adapter.lora.alpha = {self._alpha}")
        return factor


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(size in (None, own) for own, size in zip(shape, wanted, strict=True))
