"""PEFT directories: adapter_config.json beside adapter_model.safetensors, as `save_pretrained` writes them.

Every tensor is placed on a part of the base model, and everything that the config names has its tensors, or the adapter
is refused. What each kind of adapter computes, and what is refused, is listed in docs/adapters.md.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.adapters.adapter import BaseWeights, LoraDelta
from model.adapters.content import AdapterContent
from model.adapters.peft_config import PeftConfig, read_peft_config
from model.adapters.peft_deltas import DeltaReader
from model.adapters.peft_fields import CONFIG_FILE, MERGE, show
from model.adapters.peft_targets import EMBEDDING, HEAD, Targets, spelling_of
from model.adapters.peft_tensors import WEIGHTS_FILE, Part, PeftTensors, read_peft_tensors
from model.adapters.peft_tokens import TokenReader
from model.adapters.tensors import AdapterError
from model.bounded_regex import Budget

_LORA_PARTS = (Part.A, Part.B, Part.EMBEDDING_A, Part.EMBEDDING_B, Part.INNER_A, Part.INNER_B)
_NORM = "norm.weight"
_ROUTER = ".mlp.gate"


def read_peft(directory: Path, base: BaseWeights) -> AdapterContent:
    """Read a PEFT adapter for the base model. Raises AdapterError naming the field or the tensor."""
    config = read_peft_config(directory)
    tensors = read_peft_tensors(directory)
    targets = Targets(config, base, spelling_of(tensors.names, base), Budget())
    _check_saved(config, targets, base)
    reader = DeltaReader(config, targets, tensors, base)
    deltas = reader.linear_deltas() | reader.expert_deltas() | _routers(targets, tensors, base)
    tokens = TokenReader(reader).read()
    if tokens.head is not None:
        deltas[HEAD] = tokens.head
    biases = _biases(config, [*deltas] if config.bias == "lora_only" else base.module_shapes, tensors, base)
    norms = _norms(targets, tensors, base)
    for module, part, name in tensors.left():
        raise AdapterError(f"tensor '{name}' {_why_left(module, part, config, targets, base)}")
    return AdapterContent(
        deltas=deltas,
        alpha=config.alpha,
        invocation_tokens=config.invocation_tokens,
        biases=biases,
        norms=norms,
        embedding=tokens.embedding,
        embedding_rows=tokens.embedding_rows,
        head_rows=tokens.head_rows,
    )


def _norm_modules(base: BaseWeights) -> Iterator[str]:
    return (name.removesuffix(".weight") for name in base.tensors if name.endswith(_NORM))


def _router_modules(base: BaseWeights) -> Iterator[str]:
    return (module for module in base.module_shapes if module.endswith(_ROUTER))


def _check_saved(config: PeftConfig, targets: Targets, base: BaseWeights) -> None:
    """Refuse modules_to_save that names what cannot be replaced, or what is not there."""
    replaceable = {EMBEDDING, HEAD, *_norm_modules(base), *_router_modules(base)}
    paths = {path: None for leaf in (*replaceable, *base.module_shapes) for path in _with_parents(leaf)}
    used = set()
    for path, entry in targets.saved(paths):
        used.add(entry)
        if path not in replaceable:
            raise AdapterError(
                f"{CONFIG_FILE}: modules_to_save = {show(list(config.modules_to_save))} is not supported: it names "
                f"'{path}', and only embed_tokens, lm_head, norms and routers can be replaced whole: adapt it as one "
                f"of the target_modules, or {MERGE}"
            )
    for entry in config.modules_to_save:
        if entry not in used and not any(path.endswith(entry) for path in paths):
            raise AdapterError(
                f"{CONFIG_FILE}: modules_to_save = {show(list(config.modules_to_save))} is not supported: the base "
                f"model has no '{entry}'"
            )


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


def _biases(config: PeftConfig, modules: Iterable[str], tensors: PeftTensors, base: BaseWeights) -> dict[str, Tensor]:
    """Return the trained biases minus the base model's, by module."""
    biases = {}
    for module in modules:
        own = None if config.bias == "none" else base.tensors.get(f"{module}.bias")
        if own is None:
            continue
        found = tensors.take(module, Part.BIAS) or tensors.take(module, Part.BASE_BIAS)
        if found is None:
            raise AdapterError(
                f"bias is '{config.bias}' in {CONFIG_FILE}, but {WEIGHTS_FILE} has no bias of '{module}': some PEFT "
                f"versions did not save it; train with bias 'none', or {MERGE}"
            )
        found.check_shape(tuple(own.shape), "(out,)")
        biases[module] = found.tensor.float() - own.float()
    return biases


def _norms(targets: Targets, tensors: PeftTensors, base: BaseWeights) -> dict[str, Tensor]:
    """Return the trained weights of norms minus the base model's, by module."""
    return {module: _difference(module, tensors, base) for module, _ in targets.saved(_norm_modules(base))}


def _routers(targets: Targets, tensors: PeftTensors, base: BaseWeights) -> dict[str, LoraDelta]:
    """Return trained routers as deltas of full rank, by module: there are few experts, and so few ranks."""
    deltas = {}
    for module, _ in targets.saved(_router_modules(base)):
        difference = _difference(module, tensors, base)  # (E, D)
        deltas[module] = LoraDelta(difference, torch.eye(len(difference)), 1.0)
    return deltas


def _difference(module: str, tensors: PeftTensors, base: BaseWeights) -> Tensor:
    """Return the weight that modules_to_save put in the place of the base model's, minus that one."""
    found, own = tensors.take(module, Part.WEIGHT), base.tensors[f"{module}.weight"]
    if found is None:
        raise AdapterError(
            f"modules_to_save in {CONFIG_FILE} names '{module}', but {WEIGHTS_FILE} has no tensor for it"
        )
    found.check_shape(tuple(own.shape), "the base model's")
    return found.tensor.float() - own.float()


def _why_left(module: str, part: Part, config: PeftConfig, targets: Targets, base: BaseWeights) -> str:
    is_known = module in base.module_shapes or module == EMBEDDING
    if not is_known and f"{module}.weight" not in base.tensors and f"{module}.0.down_proj" not in base.module_shapes:
        return f"adapts '{module}', which is not a module of the base model: is the adapter for another model?"
    if part in _LORA_PARTS:
        return f"is on a module that target_modules and target_parameters in {CONFIG_FILE} do not name"
    if part in (Part.MAGNITUDE, Part.LORA_BIAS):
        field = "use_dora" if part == Part.MAGNITUDE else "lora_bias"
        return f"has no place: {field} is not true in {CONFIG_FILE}, or the module is not among its targets"
    if part in (Part.BIAS, Part.BASE_BIAS):
        return f"is a bias, but bias is '{config.bias}' in {CONFIG_FILE}, or the base model has none there"
    if part == Part.TOKENS:
        return f"holds rows of tokens, but trainable_token_indices in {CONFIG_FILE} does not name the module"
    return f"replaces a whole module, which modules_to_save in {CONFIG_FILE} does not name"
