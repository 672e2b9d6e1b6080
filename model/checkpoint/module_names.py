"""One spelling for what checkpoints and adapters call differently: a model's modules, and the tensors in them.

Names are Hugging Face's of the llama family, `model.layers.3.mlp.gate_proj`. Mixtures of experts all get Qwen's:
`mlp.gate` for the router, `mlp.experts.5.gate_proj`, `up_proj` and `down_proj` for an expert. Files also come with all
experts of a layer stacked into one tensor, as transformers 5 holds them in memory; which parts of it are which is said
here too. In models that also see, the language model lies one level deeper. Source: the conversion mapping of
transformers 5.

E experts, D hidden, F of one expert.
"""

import re
from collections.abc import Iterator

_EXPERT_MATRICES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL = re.compile(r"(.*\.layers\.\d+)\.block_sparse_moe\.(gate|experts)(?![^.])(.*)")
_EXPERT_MATRIX = re.compile(r"(.*\.mlp\.experts\.\d+)\.(w[123])(?![^.])(.*)")
_TEXT_PART = re.compile(r"(?:language_model\.(?=model\.|lm_head)|model\.language_model(?=\.))(.*)")
_STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")


def canonical_name(name: str) -> str:
    """Return a module path or a tensor's name in the one spelling; one that has no other spelling as it is."""
    if match := _TEXT_PART.fullmatch(name):
        name = match[1] if name.startswith("language_model.") else f"model{match[1]}"
    if match := _MIXTRAL.fullmatch(name):
        name = f"{match[1]}.mlp.{match[2]}{match[3]}"
    if match := _EXPERT_MATRIX.fullmatch(name):
        name = f"{match[1]}.{_EXPERT_MATRICES[match[2]]}{match[3]}"
    return name


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to the part of a multimodal model that sees."""
    return name.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector."))


def unstack(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, slice]]] | None:
    """Return what a tensor of stacked experts consists of, None for any other tensor; `name` is canonical.

    Gives each part's name and the index that takes it out: `gate_up_proj` (E, 2F, D) holds F rows of every expert's
    gate and then F of its up, `down_proj` (E, D, F) the rows of its down.
    """
    match = _STACKED.fullmatch(name)
    if match is None or len(shape) != 3 or (match[2] == "gate_up_proj" and shape[1] % 2):
        return None
    path, rows = match[1], shape[1]
    parts = {"down_proj": slice(0, rows)}
    if match[2] == "gate_up_proj":
        parts = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
    return (
        (f"{path}.{expert}.{part}.weight", (expert, at)) for expert in range(shape[0]) for part, at in parts.items()
    )
