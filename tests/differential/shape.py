"""How two JSON answers differ: fields, their order, their types, and the values of fields whose values mean the same on
both servers. It must not know of requests."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from server.fields import json_type
from tests.differential.pair import Json

SAME_VALUES = frozenset(
    {
        *(
            "code",
            "type",
            "object",
            "index",
            "finish_reason",
            "stop_type",
            "stopping_word",
            "stop",
            "role",
            "truncated",
        ),
        *("tokens_predicted", "tokens_evaluated", "completion_tokens", "prompt_tokens", "total_tokens", "content"),
        *("text", "tokens", "prompt", "has_new_line", "n_predict", "token", "bytes", "n_prompt_tokens", "n_ctx"),
        *("predicted_n", "status", "success", "scale", "task_name", "prompt_prefix", "bos_token", "eos_token"),
        *("total_slots", "n_vocab", "n_embd", "n_ctx_train", "format", "family", "n_params", "chat_template"),
        *("temperature", "top_k", "top_p", "min_p", "n_probs", "ignore_eos", "samplers", "stream", "max_tokens"),
    }
)
"""Fields of which the values are compared too, not only the types."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One place where two answers differ."""

    path: str
    """Names and, for any place of an array, `*`, joined by dots."""
    kind: str
    """missing (ours lacks it), added, order, type, value, or length."""
    detail: str = ""


def differences(ours: Json, peers: Json, path: str = "") -> Iterator[Difference]:
    """Yield the differences, those of an array's elements under one path."""
    match ours, peers:
        case dict(), dict():
            yield from _of_objects(ours, peers, path)
        case list(), list():
            if len(ours) != len(peers):
                yield Difference(path, "length", f"{len(ours)} for {len(peers)}")
            for our, other in zip(ours, peers, strict=False):
                yield from differences(our, other, _join(path, "*"))
        case _:
            our_type, peer_type = json_type(ours), json_type(peers)
            if our_type != peer_type:
                yield Difference(path, "type", f"{our_type} for {peer_type}")
            elif path.removesuffix(".*").rsplit(".", 1)[-1] in SAME_VALUES and not _same(ours, peers):
                yield Difference(path, "value", f"{_short(ours)} for {_short(peers)}")


def _of_objects(ours: Mapping[str, Json], peers: Mapping[str, Json], path: str) -> Iterator[Difference]:
    for name in peers.keys() - ours.keys():
        yield Difference(_join(path, name), "missing")
    for name in ours.keys() - peers.keys():
        yield Difference(_join(path, name), "added")
    common = [name for name in peers if name in ours]
    if common != [name for name in ours if name in peers]:
        yield Difference(path, "order", f"llama-server's is {' '.join(common)}")
    for name in common:
        yield from differences(ours[name], peers[name], _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _same(ours: Json, peers: Json) -> bool:
    """Whether two values mean the same; the peer writes numbers in float32's digits."""
    if isinstance(ours, int | float) and isinstance(peers, int | float):
        return math.isclose(ours, peers, rel_tol=1e-6)
    return ours == peers


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
