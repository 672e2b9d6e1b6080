"""The digest names all that is computed with, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.adapters.adapter import Dora, EmbeddingDelta, LoraDelta, TokenRows
from model.adapters.content import AdapterContent


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def content() -> AdapterContent:
    dora = Dora(values(6, seed=3), values(6).double() ** 2, values(6).double(), values(6).double() ** 2, None)
    return AdapterContent(
        deltas={
            "a": LoraDelta(values(2, 4, seed=1), values(6, 2, seed=2), 0.5, values(6, seed=9)),
            "b": LoraDelta(values(2, 4, seed=4), values(6, 2, seed=5), 0.5, dora=dora),
        },
        alpha=1.0,
        biases={"a": values(6, seed=6)},
        norms={"n": values(4, seed=7)},
        embedding=EmbeddingDelta(values(9, 2, seed=8), values(4, 2, seed=9), 2.0),
        embedding_rows=TokenRows(torch.tensor([1, 5]), values(2, 4, seed=10)),
        head_rows=TokenRows(torch.tensor([1, 5]), values(2, 4, seed=11)),
    )


def with_delta(own: AdapterContent, module: str, change: Callable[[LoraDelta], LoraDelta]) -> AdapterContent:
    return replace(own, deltas={**own.deltas, module: change(own.deltas[module])})


def with_magnitude(delta: LoraDelta) -> LoraDelta:
    assert delta.dora is not None
    return replace(delta, dora=replace(delta.dora, magnitude=values(6, seed=99)))


CHANGES: dict[str, Callable[[AdapterContent], AdapterContent]] = {
    "factor": lambda own: with_delta(own, "a", lambda delta: replace(delta, factor=0.25)),
    "A": lambda own: with_delta(own, "a", lambda delta: replace(delta, a=values(2, 4, seed=99))),
    "B": lambda own: with_delta(own, "a", lambda delta: replace(delta, b=values(6, 2, seed=99))),
    "bias of B": lambda own: with_delta(own, "a", lambda delta: replace(delta, bias=values(6, seed=99))),
    "no bias of B": lambda own: with_delta(own, "a", lambda delta: replace(delta, bias=None)),
    "no DoRA": lambda own: with_delta(own, "b", lambda delta: replace(delta, dora=None)),
    "magnitude": lambda own: with_delta(own, "b", with_magnitude),
    "other module": lambda own: replace(own, deltas={"c": own.deltas["a"], "b": own.deltas["b"]}),
    "biases": lambda own: replace(own, biases={"a": values(6, seed=99)}),
    "no biases": lambda own: replace(own, biases={}),
    "bias of another module": lambda own: replace(own, biases={"b": own.biases["a"]}),
    "norms": lambda own: replace(own, norms={"n": values(4, seed=99)}),
    "bias for norm": lambda own: replace(own, norms={}, biases={**own.biases, "n": own.norms["n"]}),
    "no embedding": lambda own: replace(own, embedding=None),
    "embedding's factor": lambda own: replace(
        own, embedding=EmbeddingDelta(values(9, 2, seed=8), values(4, 2, seed=9), 1)
    ),
    "tokens": lambda own: replace(own, embedding_rows=TokenRows(torch.tensor([1, 6]), values(2, 4, seed=10))),
    "rows": lambda own: replace(own, embedding_rows=TokenRows(torch.tensor([1, 5]), values(2, 4, seed=99))),
    "rows for head": lambda own: replace(own, embedding_rows=own.head_rows, head_rows=own.embedding_rows),
    "no rows of the head": lambda own: replace(own, head_rows=None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_computation_changes_the_digest(name: str) -> None:
    own = content()
    assert CHANGES[name](own).digest() != own.digest()


def test_what_does_not_change_it_does_not() -> None:
    own = content()
    same = replace(own, alpha=7.0, task_name="t", prompt_prefix="p", invocation_tokens=(1,))
    assert same.digest() == own.digest() == content().digest()
    assert replace(own, deltas=dict(reversed([*own.deltas.items()]))).digest() == own.digest()


def test_precision_and_layout_do_not_matter_where_values_are_the_same() -> None:
    half = values(2, 4, seed=1, dtype=torch.bfloat16)
    first = AdapterContent({"a": LoraDelta(half, values(6, 2), 1.0)}, 1.0)
    second = AdapterContent({"a": LoraDelta(half.float().T.contiguous().T, values(6, 2), 1.0)}, 1.0)
    assert first.digest() == second.digest()
