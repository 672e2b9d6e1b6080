"""Readers of token streams: when they are called, and what one of them can do to others."""

from scheduler.core import Scheduler
from scheduler.events import Event, Finished, FinishReason, TokenSampled
from scheduler.loop import StepLoop, StreamEvent
from tests.scheduler.builders import make_limits, make_request
from tests.scheduler.loop_models import GatedModel, ObservedModel, make_loop, read, run, running, submit


def test_reader_that_fails_ends_its_own_request_and_no_other() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model)
        seen: list[StreamEvent] = []

        def fail_once(event: StreamEvent) -> None:
            seen.append(event)
            if len(seen) == 2:
                raise RuntimeError("cannot read this")

        async with running(loop, model):
            submit(loop, model, make_request(0, max_new_tokens=50)).read_by(fail_once)
            _, finish = await read(submit(loop, model, make_request(1, max_new_tokens=50)))
            assert finish.reason is FinishReason.LIMIT
        assert [type(event) for event in seen] == [TokenSampled, TokenSampled, Finished]
        assert isinstance(seen[2], Finished)
        assert (seen[2].reason, seen[2].message) == (FinishReason.ERROR, "RuntimeError: cannot read this")

    run(main)


def test_reader_that_fails_at_its_end_is_told_so_in_place_of_the_end() -> None:
    async def main() -> None:
        model = ObservedModel()
        loop = make_loop(model)
        seen: list[StreamEvent] = []

        def fail_at_the_end(event: StreamEvent) -> None:
            seen.append(event)
            if isinstance(event, Finished):
                raise RuntimeError("cannot read this")

        async with running(loop, model):
            submit(loop, model, make_request(0, max_new_tokens=1)).read_by(fail_at_the_end)
            _, finish = await read(submit(loop, model, make_request(1, max_new_tokens=50)))
            assert finish.reason is FinishReason.LIMIT
        ends = [(event.reason, event.message) for event in seen if isinstance(event, Finished)]
        assert ends == [(FinishReason.LIMIT, ""), (FinishReason.ERROR, "RuntimeError: cannot read this")]

    run(main)


def test_reader_that_fails_while_another_request_is_ended_does_not_reach_who_ends_it() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)

        def fail(event: StreamEvent) -> None:
            raise RuntimeError("cannot read this")

        async with running(loop, model):
            submit(loop, model, make_request(0, max_new_tokens=50)).read_by(fail)
            other = submit(loop, model, make_request(1, max_new_tokens=50))
            await model.wait_for_step()
            loop.scheduler.end(0, FinishReason.ABORT, now=0.0)  # an event that waits for the next delivery
            loop.end(1)
            _, finish = await read(other)
            assert finish.reason is FinishReason.ABORT

    run(main)


def test_reader_that_ends_its_request_sees_its_events_in_order() -> None:
    async def main() -> None:
        model = ObservedModel()
        observed: list[Event] = []
        loop = StepLoop(Scheduler(make_limits()), model, observe=observed.append)
        async with running(loop, model):
            stream = submit(loop, model, make_request(0, max_new_tokens=50))
            other = submit(loop, model, make_request(1, max_new_tokens=50))
            seen: list[StreamEvent] = []

            def end_at_second(event: StreamEvent) -> None:
                seen.append(event)
                if len(seen) == 2:
                    loop.end(0, FinishReason.WORD)

            stream.read_by(end_at_second)
            await read(other)
        assert [type(event) for event in seen] == [TokenSampled, TokenSampled, Finished]
        first_end = next(place for place, event in enumerate(observed) if isinstance(event, Finished))
        before = observed[first_end - 1]
        assert isinstance(before, TokenSampled)
        assert before.request_id == 1, "the other tokens of the step come first"

    run(main)


def test_what_a_step_brought_is_delivered_while_the_next_computes() -> None:
    async def main() -> None:
        model = GatedModel()
        loop = make_loop(model)
        seen: list[tuple[int, int]] = []
        async with running(loop, model):
            stream = submit(loop, model, make_request(0, max_new_tokens=3))
            stream.read_by(lambda event: seen.append((event.request_id, loop.scheduler.in_flight is not None)))
            for _ in range(3):
                await model.wait_for_step()
                model.let_go()
            model.open()
            await read(submit(loop, model, make_request(1, max_new_tokens=1)))
        assert [in_flight for _, in_flight in seen[:2]] == [True, True]

    run(main)
