"""The step loop: the one asyncio task that owns the scheduler, and the worker thread on which steps are computed.

Clients call `submit` and `end`, which return at once; a request's events arrive in its `TokenStream`. While the worker
computes, the event loop is free, and what the step before has brought is delivered: the model does not wait for it.
Delivery never blocks: a reader is a plain function, which takes note of the event."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

from scheduler.batch import Batch, StepOutput
from scheduler.core import Scheduler
from scheduler.errors import ShuttingDown
from scheduler.events import Event, Finished, FinishReason, PromptComputed, TokenSampled
from scheduler.request import Request

StreamEvent: TypeAlias = PromptComputed | TokenSampled | Finished
T = TypeVar("T")

log = logging.getLogger(__name__)


class Executor(Protocol):
    """Computes a step. Called on the worker thread, one step at a time."""

    def execute(self, batch: Batch, /) -> StepOutput:
        """Return one sample for each row of `batch` with `sampling`, in order."""
        ...


class TokenStream:
    """The tokens of one request as they come, then its `Finished`. It has one reader."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._reader: Callable[[StreamEvent], None] | None = None
        self._unread: list[StreamEvent] = []

    def push(self, event: StreamEvent) -> None:
        """Deliver an event: to the reader, or kept until there is one."""
        if self._reader is None:
            self._unread.append(event)
        else:
            self._reader(event)

    def read_by(self, reader: Callable[[StreamEvent], None]) -> None:
        """Call `reader` with each event, with those that have come already first. It must not wait. Call this once."""
        assert self._reader is None, f"request {self.request.request_id} has a reader"
        self._reader = reader
        unread, self._unread = self._unread, []
        for event in unread:
            reader(event)


class StepLoop:
    """Plan, run, commit, until drained. `observe` sees every event, in order, on the event loop's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        observe: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._observe = observe
        self._clock = clock
        # Its one thread computes whatever touches the model, in the order in which it is asked to.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
        self._streams: dict[int, TokenStream] = {}
        self._ids = itertools.count()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self._stopping = False
        self._ended = False
        self._delivering = False

    @property
    def is_accepting(self) -> bool:
        """Whether requests are accepted: until `drain` or `stop`."""
        return self._accepting

    def next_request_id(self) -> int:
        """Return an id that no request of this process had."""
        return next(self._ids)

    def submit(self, request: Request) -> TokenStream:
        """Accept a request and return its stream. Raises a `Refusal`, and changes nothing, where it is not accepted."""
        if not self._accepting:
            raise ShuttingDown
        self.scheduler.add(request, self._clock())
        stream = self._streams[request.request_id] = TokenStream(request)
        self._idle.clear()
        self._work.set()
        return stream

    def end(self, request_id: int, reason: FinishReason = FinishReason.ABORT, message: str = "") -> None:
        """End a request early: the client left (ABORT), or its text is complete (WORD). Does nothing where it has
        ended.

        Its slot and blocks are free for the next `plan`, within the step that is in flight.
        """
        self.scheduler.end(request_id, reason, self._clock(), message)
        self._deliver()

    async def between_steps(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread that computes the steps: after the step in flight and before the next, at once where
        there is none. Return what it returns, raise what it raises.

        It is what may change what steps read: a step planned later sees it, one planned earlier does not. Works from
        before `run` until `run` ends, while the loop drains too; later it raises ShuttingDown and does nothing.
        Cancelling the caller takes back work that has not begun.
        """
        return await self.enqueue(work)

    def enqueue(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Do as `between_steps` does, without waiting: steps that are planned after this call run after `work`."""
        if self._ended:
            raise ShuttingDown
        return asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def run(self) -> None:
        """Run steps while there is work, wait while there is none, return after `drain` or `stop`. Call it once.

        However it ends, no stream is left without its `Finished`, and no work between steps undone.
        """
        try:
            while not self._stopping:
                batch = self.scheduler.plan(self._clock())
                if batch is None:
                    self._work.clear()
                    self._deliver()  # a reader may submit a request
                    await self._work.wait()
                else:
                    await self._step(batch)
        finally:
            self._ended = True
            self._worker.shutdown()
            self.stop()
            self._deliver()

    async def _step(self, batch: Batch) -> None:
        computing = asyncio.get_running_loop().run_in_executor(self._worker, self._executor.execute, batch)
        self._deliver()
        try:
            output = await computing
        except Exception as error:
            # Whatever a step raises ends the step's own requests and no others.
            log.exception("step %d failed", batch.step_id)
            self.scheduler.fail(f"{type(error).__name__}: {error}", self._clock())
        else:
            self.scheduler.commit(output, self._clock())

    def _deliver(self) -> None:
        if self._delivering:  # a reader has ended its request: the events of that come after those before them
            return
        self._delivering = True
        while events := self.scheduler.take_events():
            for event in events:
                self._observe(event)
                if isinstance(event, TokenSampled | PromptComputed):
                    self._push(self._streams[event.request_id], event)
                elif isinstance(event, Finished):
                    self._push(self._streams.pop(event.request_id), event)
        self._delivering = False
        if not self._streams:
            self._idle.set()

    def _push(self, stream: TokenStream, event: StreamEvent) -> None:
        try:
            stream.push(event)
        except Exception as error:
            # No reader raises, on any tokens; a bug in one would end the step loop here, or reach another request that
            # is being ended. So it ends its own request, and a reader that fails at the end is told so in its place.
            log.exception("request %d cannot be delivered", event.request_id)
            message = f"{type(error).__name__}: {error}"
            if not isinstance(event, Finished):
                self.scheduler.end(event.request_id, FinishReason.ERROR, self._clock(), message)
            elif event.reason is not FinishReason.ERROR:
                self._push(stream, replace(event, reason=FinishReason.ERROR, message=message))

    async def drain(self, grace_s: float) -> None:
        """Accept no more, let accepted requests finish for `grace_s` seconds, end what is left with an error, then
        stop."""
        self._accepting = False
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self.stop()
        self._stopping = True
        self._work.set()

    def stop(self) -> None:
        """Accept no more and end every request with an error now; `run` returns after the step in flight."""
        self._accepting = False
        for request_id in tuple(self._streams):
            self.end(request_id, FinishReason.ERROR, "the server is shutting down")
        self._stopping = True
        self._work.set()
