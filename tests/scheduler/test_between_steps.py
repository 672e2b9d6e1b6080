"""Work between steps, on a real event loop and a real worker thread."""

import asyncio
import threading
from functools import partial

import pytest

from scheduler.errors import ShuttingDown
from scheduler.events import FinishReason
from tests.scheduler.builders import make_request
from tests.scheduler.loop_models import GatedModel, ObservedModel, make_loop, read, run, running, submit


def test_work_between_steps_waits_for_the_step_in_flight_and_precedes_the_next() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        num_steps_before: list[int] = []
        async with running(loop, model):
            submit(loop, model, make_request(0, max_new_tokens=3))
            await model.wait_for_step()
            work = asyncio.create_task(loop.between_steps(lambda: num_steps_before.append(len(model.keys))))
            await asyncio.wait([work], timeout=0)
            assert not num_steps_before, "the step was not over"
            model.let_go(3)
            await work
        assert num_steps_before == [1]

    run(main)


def test_work_between_steps_is_done_by_the_thread_of_the_steps_in_the_order_asked_for() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model)
        order: list[int] = []

        def note(number: int) -> int:
            order.append(number)
            return threading.get_ident()

        async with running(loop, model):
            await read(submit(loop, model, make_request(0)))
            threads = await asyncio.gather(*(loop.between_steps(partial(note, number)) for number in range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert set(threads) == model.threads

    run(main)


def test_work_between_steps_of_an_idle_loop_is_done_at_once() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model)
        assert await loop.between_steps(lambda: "before run") == "before run"
        async with running(loop, model):
            assert await loop.between_steps(lambda: "idle") == "idle"

    run(main)


def test_failing_work_between_steps_is_its_callers_alone() -> None:
    def fail() -> None:
        raise KeyError("adapter")

    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        async with running(loop, model):
            stream = submit(loop, model, make_request(0, max_new_tokens=2))
            await model.wait_for_step()
            work = asyncio.create_task(loop.between_steps(fail))
            model.open()
            with pytest.raises(KeyError, match="adapter"):
                await work
            _, finish = await read(stream)
            assert finish.reason is FinishReason.LIMIT

    run(main)


def test_work_between_steps_is_done_while_the_loop_drains_and_refused_after_its_end() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model, num_slots=1)
        task = asyncio.create_task(loop.run())
        stream = submit(loop, model, make_request(0, max_new_tokens=2))
        await model.wait_for_step()
        drain = asyncio.create_task(loop.drain(grace_s=30))
        await asyncio.wait([drain], timeout=0)
        work = asyncio.create_task(loop.between_steps(lambda: len(model.keys)))
        await asyncio.wait([work], timeout=0)
        model.open()
        assert await work == 1
        await read(stream)
        await drain
        await task
        done: list[int] = []
        with pytest.raises(ShuttingDown):
            await loop.between_steps(lambda: done.append(1))
        assert not done

    run(main)


def test_work_asked_for_before_the_loop_is_stopped_is_done() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        task = asyncio.create_task(loop.run())
        submit(loop, model, make_request(0))
        await model.wait_for_step()
        work = asyncio.create_task(loop.between_steps(lambda: "done"))
        await asyncio.wait([work], timeout=0)
        loop.stop()
        model.open()
        await task
        assert await work == "done"

    run(main)


def test_work_whose_caller_is_cancelled_before_it_begins_is_not_done() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        done: list[int] = []
        async with running(loop, model):
            stream = submit(loop, model, make_request(0, max_new_tokens=2))
            await model.wait_for_step()
            work = asyncio.create_task(loop.between_steps(lambda: done.append(1)))
            await asyncio.wait([work], timeout=0)
            work.cancel()
            await asyncio.wait([work])
            model.open()
            await read(stream)
            await loop.between_steps(lambda: done.append(2))
        assert done == [2]

    run(main)
