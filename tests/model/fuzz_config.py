"""adapter_config.json as nobody should write it: sound ones with fields changed, added and removed, and any JSON."""

import dataclasses
import json
import sys

from hypothesis import strategies as st
from peft import LoraConfig

from tests.model.fuzz_bytes import NASTY_INTEGERS, Draw, DrawnFile, damage_bytes
from tests.model.fuzz_corpus import PeftSeed
from tests.model.fuzz_safetensors import num_values_of

FIELDS = (*sorted(each.name for each in dataclasses.fields(LoraConfig)), "alora_invocation_tokens", "use_qalora")
_PATTERNS = (
    "q_proj", "all-linear", ".*", "", "(", "[", "a{4294967296}", r"(a+)+$", r"(.*)*\.q_proj", r"(?:.*a){25}b",
    r"((q|_|p|r|o|j|\.|m|d|e|l)+)*x", r"(\w+\.?)+!", r"(?=(.*)*x)y", r"\1(q_proj)", r"(?P<a>q)_proj(?(a)|x)",
    r"(?i)Q_PROJ", r".*\.q_proj|.*\.up_proj", r"layers\.\d+", "^model", "(" * 500 + ")" * 500, "x*" * 400,
    "(a|a)" * 200, "[[a]]", "[a--b]", "\x00", "\ud800", "model.layers.0.self_attn.q_proj", "layers", "mlp",
    "lm_head", "embed_tokens",
    "(?:" * 90 + "a" + ")*" * 90, "((((a{0,99}){0,99}){0,99}){0,99})", "\\", "q_proj\n",
)  # fmt: skip
"""Expressions that mean something, that are damaged, and on which a matcher that goes back could sit for ever."""

_numbers = st.one_of(
    NASTY_INTEGERS,
    st.sampled_from([-1, 10**30, -(10**30), 10**400, 0.5, 1e308, 1e-320, -0.0, float("nan"), float("inf"), 3.5e38]),
)
_texts = st.sampled_from(_PATTERNS) | st.text(max_size=20) | st.from_regex(r"[(.\w*+?|)\\\[\]]{1,20}", fullmatch=True)
_scalars = st.none() | st.booleans() | _numbers | _texts
_nested = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=8,
)
_values = st.one_of(
    _nested,
    st.lists(_texts, max_size=6),
    st.lists(_numbers, max_size=6),
    st.dictionaries(_texts, _numbers, max_size=6),
    st.sampled_from(
        ["x" * 100_000, ["q_proj"] * 20_000, list(range(20_000)), {r"(.*)*" + str(i): 1 for i in range(300)}]
    ),
)
_fitting = {
    "target_modules": st.lists(st.sampled_from(_PATTERNS), min_size=1, max_size=4) | st.sampled_from(_PATTERNS),
    "exclude_modules": st.lists(st.sampled_from(_PATTERNS), max_size=4) | st.sampled_from(_PATTERNS),
    "rank_pattern": st.dictionaries(st.sampled_from(_PATTERNS), NASTY_INTEGERS, max_size=3),
    "alpha_pattern": st.dictionaries(st.sampled_from(_PATTERNS), _numbers, max_size=3),
    "layers_pattern": st.lists(st.sampled_from(_PATTERNS), max_size=3) | st.sampled_from(_PATTERNS),
    "layers_to_transform": st.lists(_numbers, max_size=3) | _numbers,
    "modules_to_save": st.lists(st.sampled_from(_PATTERNS), max_size=3),
    "target_parameters": st.lists(st.sampled_from(_PATTERNS), max_size=3),
    "trainable_token_indices": st.lists(_numbers, max_size=3)
    | st.dictionaries(st.sampled_from(_PATTERNS), st.lists(_numbers, max_size=3), max_size=2),
    "alora_invocation_tokens": st.lists(_numbers, max_size=3),
    "r": _numbers,
    "lora_alpha": _numbers,
    "bias": st.sampled_from(["none", "all", "lora_only", "x", None]),
    "init_lora_weights": st.sampled_from(["gaussian", "eva", "pissa", "pissa_niter_4", "olora", "loftq", True, False]),
    "layer_replication": st.lists(st.lists(st.integers(-1, 3), max_size=3), max_size=2),
}
"""Values of the type that a field has, which get further than any others."""


@st.composite
def configs(draw: Draw, seed: PeftSeed) -> DrawnFile:
    """Draw a file, which stands beside the weights of `seed`."""
    kind = draw(st.sampled_from(["field", "field", "field", "field", "json", "deep", "damaged"]))
    if kind == "deep":
        return DrawnFile(_deep(draw), frozenset(FIELDS))
    if kind == "json":
        return DrawnFile(json.dumps(draw(_nested)).encode(), frozenset(FIELDS))
    config = dict(seed.config)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, config)
    names = frozenset({*FIELDS, *config, *seed.tensors})
    content = json.dumps(config).encode()
    if kind == "damaged":
        content = damage_bytes(draw, content, len(content))
    return DrawnFile(content, names, num_values_of(seed.tensors))


def _change(draw: Draw, config: dict[str, object]) -> None:
    match draw(st.sampled_from(["fitting", "fitting", "fitting", "any", "drop", "add"])):
        case "fitting":
            name = draw(st.sampled_from(sorted(_fitting)))
            config[name] = draw(_fitting[name])
        case "any":
            config[draw(st.sampled_from(FIELDS))] = draw(_values)
        case "drop":
            config.pop(draw(st.sampled_from(FIELDS)), None)
        case "add":
            config[draw(st.text(max_size=20))] = draw(_values)


def _deep(draw: Draw) -> bytes:
    """JSON nested beyond what a recursive reader can follow; numbers of more digits than Python converts."""
    depth = draw(st.sampled_from([10, 900, sys.getrecursionlimit() * 50]))
    field = json.dumps(draw(st.sampled_from(FIELDS)))
    opened, closed = draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
    value = draw(
        st.sampled_from([f"{opened * depth}1{closed * depth}", opened * depth, "9" * 5000, "1e999", "-Infinity"])
    )
    return f"{{{field}: {value}}}".encode()
