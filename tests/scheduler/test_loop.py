"""The step loop on a real event loop and a real worker thread. Steps are held and let go by gates, never by time."""

import asyncio
import itertools
import threading

import pytest

from scheduler.batch import Batch, StepOutput
from scheduler.cohort import BASE
from scheduler.core import Scheduler
from scheduler.errors import QueueFull, ShuttingDown
from scheduler.events import Admitted, Event, Finished, FinishReason, StepDone, TokenSampled
from scheduler.loop import StepLoop, StreamEvent
from tests.scheduler.alone import answer_alone
from tests.scheduler.builders import LIST_A, LIST_B, LIST_C, make_limits, make_request
from tests.scheduler.loop_models import (
    FailingModel,
    GatedModel,
    ObservedModel,
    make_loop,
    on_loop,
    read,
    read_events,
    run,
    running,
    submit,
)

LIMITS = make_limits()


@on_loop(ObservedModel)
async def test_stream_gives_the_tokens_and_then_its_end(loop: StepLoop, model: ObservedModel) -> None:
    request = make_request(0, max_new_tokens=5)
    tokens, finish = await read(submit(loop, model, request))
    assert (tokens, finish.reason) == answer_alone(request, LIMITS.max_context)


@on_loop(ObservedModel)
async def test_nothing_follows_finished(loop: StepLoop, model: ObservedModel) -> None:
    events = await read_events(submit(loop, model, make_request(0, max_new_tokens=2)))
    assert [type(event) for event in events] == [TokenSampled, TokenSampled, Finished]


def test_many_lists_at_once_are_answered_as_if_alone_one_list_a_step_in_turns() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model, num_slots=8, max_waiting=8)
        requests = [
            make_request(i, (i % 3, 1, 2), key=key, max_new_tokens=12)
            for i, key in enumerate((BASE, LIST_A, LIST_B, LIST_C) * 2)
        ]
        async with running(loop, model):
            streams = [submit(loop, model, request) for request in requests]
            answers = await asyncio.gather(*(read(stream) for stream in streams))
        for request, (tokens, finish) in zip(requests, answers, strict=True):
            assert (tokens, finish.reason) == answer_alone(request, LIMITS.max_context)
        assert model.keys == [BASE, LIST_A, LIST_B, LIST_C] * 12

    run(main)


def test_steps_are_computed_on_one_thread_that_is_not_the_event_loops() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model)
        async with running(loop, model):
            await asyncio.gather(*(read(submit(loop, model, make_request(i))) for i in range(3)))
        assert len(model.threads) == 1
        assert threading.get_ident() not in model.threads

    run(main)


@on_loop(ObservedModel)
async def test_loop_wakes_for_a_request_after_it_was_idle(loop: StepLoop, model: ObservedModel) -> None:
    for request_id in range(3):
        _, finish = await read(submit(loop, model, make_request(request_id)))
        assert finish.reason is FinishReason.LIMIT


@on_loop(GatedModel)
async def test_event_loop_is_free_while_a_step_computes(loop: StepLoop, model: GatedModel) -> None:
    submit(loop, model, make_request(0))
    await model.wait_for_step()
    other = submit(loop, model, make_request(1))
    loop.end(1)
    _, finish = await read(other)
    assert finish.reason is FinishReason.ABORT
    assert loop.scheduler.in_flight is not None


@on_loop(GatedModel)
async def test_request_that_comes_during_a_step_joins_the_next(loop: StepLoop, model: GatedModel) -> None:
    submit(loop, model, make_request(0))
    await model.wait_for_step()
    submit(loop, model, make_request(1))
    model.let_go()
    await model.wait_for_step()
    batch = loop.scheduler.in_flight
    assert batch is not None
    assert [row.request_id for row in batch.rows] == [0, 1]


@on_loop(GatedModel, num_slots=1)
async def test_slot_of_a_request_ended_during_a_step_is_taken_in_the_next(loop: StepLoop, model: GatedModel) -> None:
    gone = submit(loop, model, make_request(0, key=LIST_A))
    await model.wait_for_step()
    submit(loop, model, make_request(1, key=LIST_B))
    loop.end(0)
    tokens, finish = await read(gone)
    assert (tokens, finish.reason) == ([], FinishReason.ABORT)
    model.let_go()
    await model.wait_for_step()
    assert loop.scheduler.running[0].request_id == 1


@pytest.mark.parametrize("reason", [FinishReason.WORD, FinishReason.ABORT])
def test_ended_request_is_told_why(reason: FinishReason) -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        async with running(loop, model):
            stream = submit(loop, model, make_request(0, max_new_tokens=99))
            await model.wait_for_step()
            model.let_go()
            await model.wait_for_step()
            loop.end(0, reason)
            tokens, finish = await read(stream)
            assert (len(tokens), finish.reason, finish.num_generated) == (1, reason, 1)

    run(main)


@on_loop(ObservedModel)
async def test_ending_what_has_ended_or_never_was_does_nothing(loop: StepLoop, model: ObservedModel) -> None:
    await read(submit(loop, model, make_request(0)))
    loop.end(0)
    loop.end(123)
    _, finish = await read(submit(loop, model, make_request(1)))
    assert finish.reason is FinishReason.LIMIT


def test_failing_step_ends_its_own_list_and_the_loop_goes_on() -> None:
    async def main() -> None:
        model = FailingModel(LIST_A)
        loop = make_loop(model)
        async with running(loop, model):
            broken = submit(loop, model, make_request(0, key=LIST_A))
            sound = submit(loop, model, make_request(1, key=LIST_B))
            _, failure = await read(broken)
            _, finish = await read(sound)
            assert (failure.reason, failure.message) == (FinishReason.ERROR, "RuntimeError: adapter is broken")
            assert finish.reason is FinishReason.LIMIT
            _, later = await read(submit(loop, model, make_request(2)))
            assert later.reason is FinishReason.LIMIT

    run(main)


@on_loop(ObservedModel)
async def test_reader_that_never_reads_delays_nobody(loop: StepLoop, model: ObservedModel) -> None:
    unread = submit(loop, model, make_request(0, max_new_tokens=50))
    await read(submit(loop, model, make_request(1, max_new_tokens=200)))
    tokens, _ = await read(unread)
    assert len(tokens) == 50


def test_refused_request_leaves_nothing_behind() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model, num_slots=1, max_waiting=0)
        stream = submit(loop, model, make_request(0))
        with pytest.raises(QueueFull):
            submit(loop, model, make_request(1))
        async with running(loop, model):
            await read(stream)
            await loop.drain(grace_s=30)

    run(main)


def test_drain_lets_accepted_requests_finish_and_refuses_new_ones() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model, num_slots=1)
        task = asyncio.create_task(loop.run())
        streams = [submit(loop, model, make_request(i)) for i in range(2)]
        await model.wait_for_step()
        drain = asyncio.create_task(loop.drain(grace_s=30))
        await asyncio.wait([drain], timeout=0)
        with pytest.raises(ShuttingDown):
            submit(loop, model, make_request(2))
        model.open()
        await drain
        await task
        finishes = [(await read(stream))[1] for stream in streams]
        assert [finish.reason for finish in finishes] == [FinishReason.LIMIT] * 2

    run(main)


def test_drain_without_time_ends_what_is_left_with_an_error() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model, num_slots=1)
        task = asyncio.create_task(loop.run())
        streams = [submit(loop, model, make_request(i)) for i in range(2)]
        await model.wait_for_step()
        await loop.drain(grace_s=0)
        finishes = [(await read(stream))[1] for stream in streams]
        assert [finish.reason for finish in finishes] == [FinishReason.ERROR] * 2
        assert "shutting down" in finishes[0].message
        model.open()
        await task
        assert len(model.keys) == 1, "a step was begun after the end"

    run(main)


def test_drain_of_an_idle_loop_ends_it() -> None:
    async def main() -> None:
        loop = make_loop(ObservedModel())
        task = asyncio.create_task(loop.run())
        await loop.drain(grace_s=30)
        await task

    run(main)


def test_stop_ends_everybody_at_once() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        task = asyncio.create_task(loop.run())
        stream = submit(loop, model, make_request(0))
        await model.wait_for_step()
        loop.stop()
        assert (await read(stream))[1].reason is FinishReason.ERROR
        model.open()
        await task
        with pytest.raises(ShuttingDown):
            submit(loop, model, make_request(1))

    run(main)


def test_cancelled_loop_leaves_no_stream_without_its_end() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model, num_slots=1)
        task = asyncio.create_task(loop.run())
        streams = [submit(loop, model, make_request(i)) for i in range(2)]
        await model.wait_for_step()
        model.open()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        finishes = [(await read(stream))[1] for stream in streams]
        assert [finish.reason for finish in finishes] == [FinishReason.ERROR] * 2

    run(main)


def test_bug_in_the_loop_leaves_no_stream_without_its_end() -> None:
    class ForgetfulModel(ObservedModel):
        def execute(self, batch: Batch) -> StepOutput:
            return StepOutput(())

    async def main() -> None:
        model = ForgetfulModel()
        loop = make_loop(model)
        stream = submit(loop, model, make_request(0))
        with pytest.raises(AssertionError, match="0 samples for 1 rows"):
            await loop.run()
        assert (await read(stream))[1].reason is FinishReason.ERROR

    run(main)


def test_observer_sees_every_event_in_order_on_the_event_loop() -> None:
    async def main() -> None:
        model = ObservedModel()
        seen: list[tuple[Event, int]] = []
        ticks = itertools.count()
        loop = StepLoop(
            Scheduler(LIMITS),
            model,
            observe=lambda event: seen.append((event, threading.get_ident())),
            clock=lambda: float(next(ticks)),
        )
        async with running(loop, model):
            await read(submit(loop, model, make_request(0, max_new_tokens=2)))
        kinds = [type(event) for event, _ in seen]
        assert kinds == [Admitted, StepDone, TokenSampled, StepDone, TokenSampled, Finished]
        assert {thread for _, thread in seen} == {threading.get_ident()}
        times = [event.now for event, _ in seen]
        assert times == sorted(times)

    run(main)


def test_request_ids_never_repeat() -> None:
    async def main() -> None:
        loop = make_loop(ObservedModel())
        assert len({loop.next_request_id() for _ in range(100)}) == 100

    run(main)


def test_a_reader_may_submit_the_next_request() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model, num_slots=1, max_waiting=0)
        ended = asyncio.Event()

        def begin(number: int) -> None:
            def note(event: StreamEvent) -> None:
                if isinstance(event, Finished):
                    ended.set() if number == 5 else begin(number + 1)

            submit(loop, model, make_request(number)).read_by(note)

        async with running(loop, model):
            begin(0)
            await ended.wait()

    run(main)
