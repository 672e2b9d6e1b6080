"""`validate` can fail: each test breaks one invariant by hand, since no public call does."""

import pytest

from scheduler.core import Scheduler
from scheduler.request import Request
from tests.scheduler.builders import LIST_A, LIST_B, make_request, start


def broken() -> tuple[Scheduler, Request]:
    request = make_request(0, (1,) * 20, key=LIST_A)
    scheduler = start(request)
    scheduler.plan(0.0)
    return scheduler, request


def test_validate_notices_two_lists_in_a_batch() -> None:
    scheduler, request = broken()
    request.key = LIST_B
    with pytest.raises(AssertionError):
        scheduler.validate()


def test_validate_notices_a_request_in_two_slots() -> None:
    scheduler, request = broken()
    scheduler.running[1] = request
    with pytest.raises(AssertionError):
        scheduler.validate()


def test_validate_notices_a_reference_too_many() -> None:
    scheduler, request = broken()
    scheduler.kv.blocks.share(request.blocks[0])
    with pytest.raises(AssertionError, match="wrong count"):
        scheduler.validate()


def test_validate_notices_a_writable_block_that_can_be_found() -> None:
    scheduler, request = broken()
    scheduler.kv.cache.register((), None, (1,) * 16, request.blocks[0])
    with pytest.raises(AssertionError, match="can be found by others"):
        scheduler.validate()


def test_validate_notices_a_running_request_without_turns() -> None:
    scheduler, request = broken()
    scheduler.turns.leave(request)
    with pytest.raises(AssertionError):
        scheduler.validate()


def test_validate_notices_a_request_beyond_its_token_limit() -> None:
    scheduler, request = broken()
    request.max_new_tokens = 1
    request.output.append(5)
    with pytest.raises(AssertionError):
        scheduler.validate()
