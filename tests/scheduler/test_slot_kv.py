"""KV that outlives its request: what can be found of it, forgotten, and put back."""

from scheduler.batch import BLOCK_SIZE
from scheduler.core import Scheduler
from tests.scheduler.builders import LIST_A, answer, make_limits, make_request, run_dry, start

PROMPT = tuple(range(3 * BLOCK_SIZE + 5))


def finished() -> Scheduler:
    """A scheduler whose slot 0 has had a request of three full blocks and a bit, under LIST_A."""
    scheduler = start(make_request(0, PROMPT, key=LIST_A, max_new_tokens=2))
    run_dry(scheduler)
    return scheduler


def num_cached(scheduler: Scheduler, request_id: int) -> int:
    """How much of the same prompt the next request finds."""
    request = make_request(request_id, PROMPT, key=LIST_A, max_new_tokens=1)
    start(request, scheduler=scheduler)
    run_dry(scheduler)
    return request.num_cached


def test_a_slot_remembers_its_latest_request() -> None:
    scheduler = finished()
    start(make_request(1, (1, 2), max_new_tokens=1), scheduler=scheduler)
    assert scheduler.last_in_slot[0].request_id == 0
    run_dry(scheduler)
    assert {slot: request.request_id for slot, request in scheduler.last_in_slot.items()} == {0: 1}


def test_the_full_blocks_of_a_request_that_has_ended_can_be_found() -> None:
    scheduler = finished()
    blocks = scheduler.kv.find(scheduler.last_in_slot[0])
    assert len(blocks) == 3
    assert all(scheduler.kv.blocks.is_idle(block) for block in blocks)
    assert scheduler.kv.find(make_request(9, PROMPT)) == []  # of another list


def test_what_is_forgotten_is_computed_again() -> None:
    scheduler = finished()
    num_available = scheduler.kv.blocks.num_available
    assert scheduler.kv.forget(scheduler.last_in_slot[0]) == 3 * BLOCK_SIZE
    scheduler.validate()
    assert (scheduler.kv.blocks.num_idle, scheduler.kv.blocks.num_available) == (0, num_available)
    assert scheduler.kv.forget(scheduler.last_in_slot[0]) == 0
    assert num_cached(scheduler, 1) == 0


def test_who_computes_with_forgotten_blocks_goes_on() -> None:
    scheduler = start(make_request(0, PROMPT, key=LIST_A, max_new_tokens=40))
    for _ in range(2):
        batch = scheduler.plan(0.0)
        assert batch is not None
        scheduler.kv.forget(scheduler.last_in_slot[0])
        scheduler.validate()
        scheduler.commit(answer(batch), 0.0)
    run_dry(scheduler)
    assert scheduler.kv.blocks.num_held == 0


def test_adopted_blocks_are_found_by_the_next_request() -> None:
    source, target = finished(), Scheduler(make_limits())
    request = source.last_in_slot[0]
    assert target.kv.adopt(request, 1, 3) is None  # what comes before is not there
    placed = target.kv.adopt(request, 0, 2)
    assert placed is not None
    assert (placed[0], len(placed[1])) == (0, 2)
    target.validate()
    placed = target.kv.adopt(request, 1, 3)
    assert placed is not None
    assert (placed[0], len(placed[1])) == (2, 1)
    assert target.kv.adopt(request, 0, 3) == (3, [])
    target.validate()
    assert num_cached(target, 1) == 3 * BLOCK_SIZE


def test_adopted_blocks_take_no_room_from_those_in_use() -> None:
    scheduler = Scheduler(make_limits(num_slots=1, num_blocks=4, max_context=64))
    start(make_request(0, tuple(range(100, 130)), max_new_tokens=2), scheduler=scheduler)
    assert scheduler.plan(0.0) is not None
    request = finished().last_in_slot[0]
    assert scheduler.kv.adopt(request, 0, 3) is None
    assert scheduler.kv.adopt(request, 0, 2) is not None
    scheduler.validate()
    assert scheduler.kv.adopt(request, 2, 3) is None
    assert len(scheduler.kv.find(request)) == 2
    scheduler.validate()
