"""The life of an answer that holds embeddings: its requests take slots like all others, some at a time, and everything
is freed on every way out.

A body may have more prompts than may wait. As many are submitted as can run and wait beside each other; each that ends
makes room for the next. A client that leaves is noticed by `receive`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scheduler.errors import QueueFull, Refusal
from scheduler.events import Finished, FinishReason
from scheduler.loop import StreamEvent
from server.engine import Engine
from server.errors import GenerationFailed, JsonResponse, ServerBusy, TimeUp
from server.generation import Choice
from server.preparation import prepare
from server.streaming import unless_disconnected


@dataclass(frozen=True, slots=True)
class EmbeddingAnswer:
    """An ASGI response that computes what it sends."""

    engine: Engine
    choices: Sequence[Choice]
    render: Callable[[], bytes]
    """Called on a thread when all requests are embedded. May raise GenerationFailed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send. Whatever goes wrong is raised before anything is sent."""
        pending = _Pending(self.engine, self.choices)
        timer: asyncio.TimerHandle | None = None
        try:
            await prepare(self.engine.lists, self.choices, receive, self._left_s())
            left_s = self._left_s()
            if left_s is not None:
                timer = asyncio.get_running_loop().call_later(left_s, pending.time_out)
            pending.begin()
            await unless_disconnected(self._send(pending, scope, receive, send), receive)
        finally:
            if timer is not None:
                timer.cancel()
            pending.end_all()
            for choice in self.choices:
                choice.served.release()

    def _left_s(self) -> float | None:
        timeout_s = self.engine.settings.request_timeout
        return max(timeout_s - self.choices[0].served.waited_s, 0.0) if timeout_s else None

    async def _send(self, pending: "_Pending", scope: Scope, receive: Receive, send: Send) -> None:
        await pending.done
        content = await asyncio.to_thread(self.render)
        await Response(content, media_type=JsonResponse.media_type)(scope, receive, send)


class _Pending:
    """The requests of an answer that are not embedded yet."""

    def __init__(self, engine: Engine, choices: Sequence[Choice]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when all are embedded, or one cannot be."""
        self._engine = engine
        self._waiting = deque(choice.request for choice in choices)
        self._submitted: set[int] = set()
        # Those that end are known to have when the next step is planned, so others must wait by then.
        self._max_submitted = 2 * engine.loop.scheduler.limits.num_slots

    def begin(self) -> None:
        """Submit as many as can run and wait. Raises ServerBusy where that is none, and a Refusal where one of all can
        never be served."""
        for request in self._waiting:
            self._engine.loop.scheduler.check(request)
        try:
            while self._waiting and len(self._submitted) < self._max_submitted:
                self._submit()
        except QueueFull as error:
            if not self._submitted:
                seconds = self._engine.departures.seconds_until(1, time.monotonic())
                raise ServerBusy(str(error), seconds) from error

    def end_all(self) -> None:
        """Take back what has not ended."""
        if not self.done.cancel() and not self.done.cancelled():
            self.done.exception()  # nobody may have waited for it
        self._end_submitted(FinishReason.ABORT, "")

    def time_out(self) -> None:
        """End all, for the time of the answer is over."""
        timeout_s = self._engine.settings.request_timeout
        message = f"the embeddings were not computed within {timeout_s:g} s; try again later"
        self._end_submitted(FinishReason.TIMEOUT, message)

    def _end_submitted(self, reason: FinishReason, message: str) -> None:
        for request_id in tuple(self._submitted):
            self._engine.loop.end(request_id, reason, message)

    def _submit(self) -> None:
        request = self._waiting[0]
        stream = self._engine.loop.submit(request)
        self._waiting.popleft()
        self._submitted.add(request.request_id)
        stream.read_by(self._read)

    def _read(self, event: StreamEvent) -> None:
        assert isinstance(event, Finished), "a request for an embedding samples nothing"
        self._submitted.discard(event.request_id)
        if self.done.done():
            return
        if event.reason is FinishReason.TIMEOUT:
            self._fail(TimeUp(event.message))
        elif event.reason is not FinishReason.EMBEDDED:
            self._fail(GenerationFailed(event.message))
        elif self._waiting:
            try:
                self._submit()
            except Refusal as error:
                self._fail(error)
        elif not self._submitted:
            self.done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
