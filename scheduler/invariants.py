"""The invariants of docs/scheduling.md, as assertions over a whole scheduler. Called by `Scheduler.validate`, in tests
after every transition; it reads everything and changes nothing."""

from collections import Counter
from typing import TYPE_CHECKING

from scheduler.batch import BLOCK_SIZE
from scheduler.cohort import can_share_batch, cohort_key
from scheduler.request import Request, State

if TYPE_CHECKING:
    from scheduler.core import Scheduler


def check(scheduler: "Scheduler") -> None:
    """Assert I1 … I7 on the present state. (I8 … I12 speak of runs, not of states: tests/scheduler checks them.)"""
    scheduler.kv.blocks.validate()
    scheduler.kv.cache.validate()
    _check_slots(scheduler)
    _check_block_owners(scheduler)
    _check_batch(scheduler)
    for request in scheduler.running.values():
        _check_running(scheduler, request)
    for request in scheduler.queue:
        _check_waiting(scheduler, request)


def _check_slots(scheduler: "Scheduler") -> None:
    """I2: every accepted request runs in a slot of its own or waits; the turns name exactly the running ones, and the
    paused ones are those that wait with blocks."""
    limits = scheduler.limits
    assert all(0 <= slot_id < limits.num_slots for slot_id in scheduler.running)
    assert all(request.slot_id == slot_id for slot_id, request in scheduler.running.items())
    running = {request.request_id for request in scheduler.running.values()}
    waiting = [request.request_id for request in scheduler.queue]
    assert len(set(waiting)) == len(waiting)
    assert not running & set(waiting)
    assert len(running) + len(waiting) == scheduler.num_requests
    paused = [request.request_id for request in scheduler.queue if request.state is State.PAUSED]
    assert sorted(paused) == sorted(scheduler.paused)
    in_turns = [request for key in scheduler.turns for request in scheduler.turns.members(key)]
    assert sorted(request.request_id for request in in_turns) == sorted(running)
    for key in scheduler.turns:
        assert scheduler.turns.members(key), "a cohort without members stands in the turn order"
        assert all(can_share_batch(request.key_now, key) for request in scheduler.turns.members(key))


def _check_block_owners(scheduler: "Scheduler") -> None:
    """I3: references are counted right. I4: a block that will still be written has one owner and cannot be found."""
    holders = [*scheduler.running.values(), *scheduler.paused.values()]
    counted = Counter(block for request in holders for block in request.blocks)
    for block_id in range(scheduler.limits.num_blocks):
        assert scheduler.kv.blocks.num_references(block_id) == counted[block_id], f"block {block_id}: wrong count"
    for request in holders:
        for block_id in request.blocks[request.num_computed // BLOCK_SIZE :]:
            assert counted[block_id] == 1, f"writable block {block_id} has {counted[block_id]} owners"
            assert block_id not in scheduler.kv.cache, f"writable block {block_id} can be found by others"


def _check_batch(scheduler: "Scheduler") -> None:
    """I1: one key per batch. I6: token and slot budgets hold."""
    batch = scheduler.in_flight
    if batch is None:
        return
    assert batch.rows
    assert batch.num_tokens <= scheduler.limits.max_step_tokens
    assert len(batch.rows) <= scheduler.limits.num_slots
    assert len({row.request_id for row in batch.rows}) == len(batch.rows)
    for row in batch.rows:
        assert row.end <= len(row.block_table) * BLOCK_SIZE
        request = scheduler.get(row.request_id)
        if request is not None:
            keys = {request.key_at(position) for position in range(row.start, row.end)}
            assert all(can_share_batch(key, batch.key) for key in keys), "two adapter lists in one batch"


def _check_running(scheduler: "Scheduler", request: Request) -> None:
    assert request.state is State.RUNNING
    _check_progress(scheduler, request)


def _check_progress(scheduler: "Scheduler", request: Request) -> None:
    assert request.key == cohort_key(request.key), "key is not canonical"
    _check_activations(request)
    assert 1 <= request.num_uncomputed <= request.num_tokens
    assert len(request.output) < max(request.max_new_tokens, 1)
    assert request.num_tokens < scheduler.limits.max_context
    assert request.num_computed <= len(request.blocks) * BLOCK_SIZE
    assert request.num_registered == request.num_computed // BLOCK_SIZE


def _check_activations(request: Request) -> None:
    """Each names another adapter of the list, and a position of the prompt."""
    activated = [adapter for _, adapter in request.activations]
    assert len(set(activated)) == len(activated)
    assert set(activated) <= {adapter for adapter, _ in request.key}
    assert all(0 <= start < len(request.prompt) for start, _ in request.activations)
    assert request.num_dropped == 0 or request.shift is not None


def _check_waiting(scheduler: "Scheduler", request: Request) -> None:
    assert request.slot_id is None
    assert scheduler.get(request.request_id) is request
    if request.state is State.PAUSED:
        _check_progress(scheduler, request)
    else:
        assert request.state is State.WAITING
        assert not request.blocks
        assert request.num_computed == 0
