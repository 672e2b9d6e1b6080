"""Which stacks are kept, and what is freed."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from model.adapters.adapter import Adapter, EmbeddingDelta, LoraDelta, TokenRows
from model.backend import choose_backend
from model.lora import Adaptable, LoraStack, Projection, stack_adapters
from model.lora_cache import LoraCache
from scheduler.cohort import BASE, AdapterId, CohortKey, cohort_key

MODEL = Adaptable((Projection("o", 32, (("o", 24),)),), vocab_size=50, hidden_size=24)
BACKEND = choose_backend("cpu", "float32")


def make_adapter(load_id: int) -> Adapter:
    """Make an adapter with every kind of part."""
    generator = torch.Generator().manual_seed(load_id)
    delta = LoraDelta(torch.randn(4, 32, generator=generator), torch.randn(24, 4, generator=generator), 0.5)
    rows = TokenRows(torch.tensor([3, 51]), torch.randn(2, 24, generator=generator))
    return Adapter(
        AdapterId(load_id, f"digest-{load_id}"), "a", "", "peft", {"o": delta}, 8.0, "", "",
        biases={"o": torch.ones(24)},
        norms={"n": torch.ones(24)},
        embedding=EmbeddingDelta(torch.randn(50, 4, generator=generator), torch.ones(24, 4), 1.0),
        embedding_rows=rows,
        head_rows=rows,
    )  # fmt: skip


A, B = make_adapter(0), make_adapter(1)
ONE_STACK = stack_adapters([(A, 1.0)], MODEL, BACKEND).num_bytes


def make_cache(max_bytes: int) -> LoraCache:
    return LoraCache([A, B], MODEL, BACKEND, max_bytes)


def key(*scales: tuple[Adapter, float]) -> CohortKey:
    return cohort_key((adapter.id, scale) for adapter, scale in scales)


def test_the_base_key_has_no_stack() -> None:
    assert make_cache(10 * ONE_STACK).get(BASE) is None


def test_a_key_of_zero_scales_is_the_base_key() -> None:
    assert make_cache(10 * ONE_STACK).get(key((A, 0.0), (B, -0.0))) is None


def test_a_stack_is_built_once_for_each_key() -> None:
    cache = make_cache(10 * ONE_STACK)
    assert cache.get(key((A, 1.0))) is cache.get(key((A, 1.0)))
    assert cache.get(key((A, 1.0))) is not cache.get(key((A, 0.5)))
    assert cache.num_bytes == 2 * ONE_STACK


def test_the_list_used_longest_ago_makes_room() -> None:
    cache = make_cache(2 * ONE_STACK)
    first, second = cache.get(key((A, 1.0))), cache.get(key((A, 2.0)))
    cache.get(key((A, 1.0)))
    cache.get(key((A, 3.0)))
    assert cache.num_bytes == 2 * ONE_STACK
    assert cache.get(key((A, 1.0))) is first
    assert cache.get(key((A, 2.0))) is not second


def test_a_stack_larger_than_the_bound_is_kept_while_it_is_the_only_one() -> None:
    cache = make_cache(ONE_STACK - 1)
    stack = cache.get(key((A, 1.0)))
    assert cache.get(key((A, 1.0))) is stack
    cache.get(key((B, 1.0)))
    assert cache.num_bytes == ONE_STACK


def test_dropping_an_adapter_frees_every_stack_that_it_takes_part_in() -> None:
    cache = make_cache(10 * ONE_STACK)
    kept = cache.get(key((B, 1.0)))
    cache.get(key((A, 1.0)))
    cache.get(key((A, 1.0), (B, 1.0)))
    cache.drop(A.id.load_id)
    assert cache.num_bytes == ONE_STACK
    assert cache.get(key((B, 1.0))) is kept
    with pytest.raises(KeyError):
        cache.get(key((A, 1.0)))


def test_an_adapter_added_later_can_be_used() -> None:
    cache = make_cache(10 * ONE_STACK)
    late = make_adapter(7)
    cache.add(late)
    stack = cache.get(key((late, 1.0)))
    assert stack is not None
    assert stack.change("o") is not None


def test_dropping_an_adapter_frees_its_memory() -> None:
    adapter = make_adapter(9)
    cache = make_cache(10 * ONE_STACK)
    cache.add(adapter)
    stack = cache.get(key((A, 0.5), (adapter, 1.0)))
    assert stack is not None
    stack.embed(torch.tensor([3]), torch.zeros(1, 24))
    assert adapter.embedding is not None
    assert adapter.embedding_rows is not None
    alive: weakref.WeakSet[object] = weakref.WeakSet(
        [
            stack,
            adapter.deltas["o"].a,
            adapter.biases["o"],
            adapter.norms["n"],
            adapter.embedding.a,
            adapter.embedding_rows.rows,
        ]
    )
    assert len(alive) == 6
    cache.drop(9)
    del adapter, stack
    gc.collect()
    assert len(alive) == 0


def test_an_evicted_stack_is_freed() -> None:
    cache = make_cache(ONE_STACK)
    alive: weakref.WeakSet[object] = weakref.WeakSet([cache.get(key((A, 1.0)))])
    assert len(alive) == 1
    cache.get(key((A, 2.0)))
    gc.collect()
    assert len(alive) == 0


class HeldBuilds:
    """Builds of stacks that end when the test says so, on the threads that ask for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        monkeypatch.setattr("model.lora_cache.stack_adapters", self._build)

    def _build(self, *parts: Any) -> LoraStack:
        stack = stack_adapters(*parts)
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.may_end.wait(30)
        return stack


def test_of_two_builders_of_a_key_the_first_that_is_ready_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, builds = make_cache(10 * ONE_STACK), HeldBuilds(monkeypatch)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(cache.get, key((A, 1.0)))
        assert builds.begun.wait(30)
        assert not cache.has(key((A, 1.0)))
        first = cache.get(key((A, 1.0)))  # waits for nobody
        builds.may_end.set()
        assert slow.result() is first
    assert cache.num_bytes == ONE_STACK


def test_a_stack_is_not_kept_whose_adapter_went_while_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, builds = make_cache(10 * ONE_STACK), HeldBuilds(monkeypatch)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(cache.get, key((A, 1.0), (B, 1.0)))
        assert builds.begun.wait(30)
        cache.drop(A.id.load_id)
        builds.may_end.set()
        assert slow.result() is not None
    assert cache.num_bytes == 0
    assert not cache.has(key((A, 1.0), (B, 1.0)))


def test_asking_for_a_stack_is_a_use_of_it() -> None:
    cache = make_cache(2 * ONE_STACK)
    first = cache.get(key((A, 1.0)))
    cache.get(key((A, 2.0)))
    assert cache.has(BASE)
    assert cache.has(key((A, 1.0)))
    cache.get(key((A, 3.0)))
    assert cache.get(key((A, 1.0))) is first
    assert not cache.has(key((A, 2.0)))
