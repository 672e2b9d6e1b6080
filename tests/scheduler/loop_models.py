"""For tests of the loop: executors (one keeps a record, one stops at a gate, one fails), and how to run a loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from scheduler.batch import Batch, StepOutput
from scheduler.cohort import CohortKey
from scheduler.core import Scheduler
from scheduler.events import Finished, TokenSampled
from scheduler.loop import Executor, StepLoop, StreamEvent, TokenStream
from scheduler.request import Request
from tests.scheduler.builders import make_limits
from tests.scheduler.fake_model import FakeModel


class ObservedModel:
    """The fake model, and a record of how it was called."""

    def __init__(self) -> None:
        self.model = FakeModel()
        self.keys: list[CohortKey] = []
        self.threads: set[int] = set()

    def execute(self, batch: Batch) -> StepOutput:
        self.keys.append(batch.key)
        self.threads.add(threading.get_ident())
        return self.model.execute(batch)


class GatedModel(ObservedModel):
    """Each step stops before it computes, until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self._events = asyncio.get_running_loop()
        self._started = asyncio.Semaphore(0)
        self._gate = threading.Semaphore(0)

    def execute(self, batch: Batch) -> StepOutput:
        self._events.call_soon_threadsafe(self._started.release)
        self._gate.acquire()
        return super().execute(batch)

    async def wait_for_step(self) -> None:
        """Return when the next step stands before the gate."""
        await self._started.acquire()

    def let_go(self, num_steps: int = 1) -> None:
        self._gate.release(num_steps)

    def open(self) -> None:
        """Stop no more steps."""
        self.let_go(10_000)


class FailingModel(ObservedModel):
    """Fails every step of one list."""

    def __init__(self, key: CohortKey) -> None:
        super().__init__()
        self._key = key

    def execute(self, batch: Batch) -> StepOutput:
        if batch.key == self._key:
            raise RuntimeError("adapter is broken")
        return super().execute(batch)


M = TypeVar("M", bound=ObservedModel)


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test's coroutine; one that hangs is a failure."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


def make_loop(executor: Executor, **limits: int) -> StepLoop:
    return StepLoop(Scheduler(make_limits(**limits)), executor)


@asynccontextmanager
async def running(loop: StepLoop, executor: ObservedModel) -> AsyncIterator[None]:
    """Run the loop for the length of a test, and end it with a drain that has no time to give."""
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        if isinstance(executor, GatedModel):
            executor.open()
        await loop.drain(grace_s=0)
        await task


def on_loop(
    make_model: Callable[[], M], **limits: int
) -> Callable[[Callable[[StepLoop, M], Coroutine[None, None, None]]], Callable[[], None]]:
    """Run a test beside a loop that runs, with the model that computes its steps."""

    def decorate(test: Callable[[StepLoop, M], Coroutine[None, None, None]]) -> Callable[[], None]:
        async def main() -> None:
            model = make_model()
            loop = make_loop(model, **limits)
            async with running(loop, model):
                await test(loop, model)

        def run_test() -> None:
            run(main)

        return run_test

    return decorate


def submit(loop: StepLoop, executor: ObservedModel, request: Request) -> TokenStream:
    executor.model.expect(request)
    return loop.submit(request)


async def read(stream: TokenStream) -> tuple[list[int], Finished]:
    """Return the tokens of a stream and its end, when it has come."""
    *tokens, finish = await read_events(stream)
    assert isinstance(finish, Finished)
    return [event.sample.token_id for event in tokens if isinstance(event, TokenSampled)], finish


async def read_events(stream: TokenStream) -> list[StreamEvent]:
    """Return the events of a stream, when the last has come."""
    events: list[StreamEvent] = []
    ended = asyncio.Event()

    def note(event: StreamEvent) -> None:
        assert not ended.is_set(), f"{event} after the end"
        events.append(event)
        if isinstance(event, Finished):
            ended.set()

    stream.read_by(note)
    await ended.wait()
    return events
