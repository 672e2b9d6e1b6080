"""Which model is served, and how another one takes its place: POST /admin/models/load, and sleep.

The next model is loaded on a thread while the present one is served. When it is ready, new requests get it at once;
requests that have begun, in whatever state, finish on the model they began with, whose steps go on until its last
request is done. Then its memory is freed. Where the next model cannot be loaded, nothing has changed. One load at a
time.

The adapters that were in memory when the load began are loaded for the next model, or it is refused. One that is loaded
meanwhile is loaded for the next model when a request first asks for it there.

With --sleep-idle-seconds a model that nobody needs is replaced by a dormant engine (dormancy.py), and that by the model
when somebody does. It comes back as after a start: what it had cached is gone, the server's current scales are not.
"""

import asyncio
import concurrent.futures
import gc
import logging
import threading
from collections.abc import Callable

from scheduler.loop import StepLoop
from server.dormancy import dormant
from server.edge.door import Door
from server.engine import Engine
from server.errors import GenerationFailed, LoadInProgress, ModelRefused, ServerClosing
from server.metrics.state import MeasuredModel
from server.settings import Settings

log = logging.getLogger("cohort")

LOAD_ERRORS = (ValueError, OSError, MemoryError, RuntimeError)
"""What loading raises where files or memory are at fault; torch's own errors are RuntimeErrors."""


class ServedModels:
    """The engines of one server: the one at the door, and those that finish what they have begun."""

    def __init__(self, door: Door, load_next: Callable[[Settings, Engine], Engine]) -> None:
        """`load_next` loads an engine to follow another, on a thread."""
        self.has_failed = asyncio.Event()
        """Set when steps end early, which only a bug of ours can make them do; `drain` raises its error."""
        self._loading: concurrent.futures.Future[Engine] | None = None
        self._door = door
        self._load_next = load_next
        self._stepping: dict[StepLoop, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        """Waits until nobody needs the model."""
        self._awake = asyncio.Event()
        self._waking = asyncio.Lock()
        door.wake = self.wake

    @property
    def is_asleep(self) -> bool:
        """Whether the model has left memory because nobody needed it."""
        return not self._awake.is_set() and not self._retiring

    @property
    def is_loading(self) -> bool:
        """Whether a thread loads a model to follow the present one."""
        return self._loading is not None and not self._loading.done()

    def serve(self, engine: Engine) -> None:
        """Give `engine` to all requests that come from now on. The one before it ends with its last request."""
        previous, self._door.engine = self._door.engine, engine
        engine.metrics.add(measured(engine))
        stepping = self._stepping[engine.loop] = asyncio.create_task(engine.loop.run(), name="steps")
        stepping.add_done_callback(self._on_task_end)
        if engine.is_dormant:
            self._awake.clear()
            log.info("asleep: %s leaves memory until it is needed", engine.model.name)
        else:
            self._awake.set()
            log.info("ready: %s", describe(engine))
        _drop_what_left(engine)
        if self._watching is None and engine.settings.sleep_idle_seconds >= 0:
            self._watching = asyncio.create_task(
                self._sleep_when_idle(engine.settings.sleep_idle_seconds), name="sleep"
            )
            self._watching.add_done_callback(self._on_task_end)
        if previous is not None:
            retiring = asyncio.create_task(self._retire(previous), name="retire")
            self._retiring.add(retiring)
            retiring.add_done_callback(self._on_retired)

    async def replace(self, settings: Settings) -> Engine:
        """Load the model of `settings` and serve it; return its engine. Raises LoadInProgress, ServerClosing, and
        ModelRefused with the reason.
        """
        present = self._door.engine
        assert present is not None
        if self.is_loading:
            raise LoadInProgress("a model is being loaded; try again when that has ended")
        try:
            engine = await self._load(settings, present)
        except LOAD_ERRORS as error:
            log.warning("%s is not served: %s", settings.model, error, exc_info=log.isEnabledFor(logging.DEBUG))
            reason = str(error) or type(error).__name__
            engine = None
        self._loading = None
        if engine is None:
            gc.collect()  # what was loaded by then
            raise ModelRefused(reason)
        if self._door.is_closing:
            raise ServerClosing
        self.serve(engine)
        return engine

    async def wake(self) -> Engine:
        """Return the engine that is served, after the model was loaded again where it sleeps.

        Raises GenerationFailed where that cannot be, and ServerClosing.
        """
        async with self._waking:
            engine = self._door.engine
            assert engine is not None
            if not engine.is_dormant:
                return engine
            try:
                return await self.replace(engine.settings)
            except ModelRefused as error:
                raise GenerationFailed(f"the model has left memory and cannot be loaded again: {error}") from error

    async def _sleep_when_idle(self, idle_s: float) -> None:
        while True:
            await self._awake.wait()
            await self._door.callers.wait_for_none_since(idle_s)
            assert self._door.engine is not None
            self.serve(dormant(self._door.engine))

    async def drain(self, grace_s: float) -> None:
        """Accept no more, let accepted requests of all models finish for `grace_s` seconds, and end what is left with
        an error. Raises what made steps end early.
        """
        ending = [*self._retiring, *([self._watching] if self._watching is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.gather(*(loop.drain(grace_s) for loop in self._stepping))
        for stepping in self._stepping.values():
            await stepping

    async def _load(self, settings: Settings, present: Engine) -> Engine:
        """Load on a thread of its own, which the end of the process need not wait for."""
        loading = self._loading = concurrent.futures.Future()
        loading.set_running_or_notify_cancel()  # so that it is done when the thread is, and not before

        def load() -> None:
            try:
                loading.set_result(self._load_next(settings, present))
            except LOAD_ERRORS as error:
                loading.set_exception(error)
            finally:
                if not loading.done():  # a bug of ours: the thread reports it, and nobody waits for ever
                    loading.set_exception(AssertionError("loading a model ended in an unforeseen way"))

        thread = threading.Thread(target=load, name="load", daemon=True)
        thread.start()
        try:
            return await asyncio.wrap_future(loading)
        finally:
            if loading.done():
                thread.join()  # it has only to return, and holds the present engine until it does

    async def _retire(self, engine: Engine) -> None:
        await engine.users.wait_for_none()
        await engine.loop.drain(0)
        await asyncio.wait([self._stepping[engine.loop]])
        await engine.adapters.residency.close()
        engine.metrics.remove(measured(engine))
        del self._stepping[engine.loop]
        log.info("%s has answered its last request and is freed", engine.model.name)

    def _on_retired(self, retiring: "asyncio.Task[None]") -> None:
        self._retiring.discard(retiring)
        gc.collect()  # an engine is a circle of references, and holds a whole model

    def _on_task_end(self, stepping: "asyncio.Task[None]") -> None:
        if stepping.cancelled() or stepping.exception() is not None:
            self.has_failed.set()


def _drop_what_left(engine: Engine) -> None:
    """Free the adapters that were unloaded or replaced while the engine was loaded with them."""
    present = set(engine.adapters.catalog.entries)
    for entry in engine.adapters.residency.entries:
        if entry not in present:
            engine.adapters.residency.retire(entry)


def measured(engine: Engine) -> MeasuredModel:
    """Return what metrics read of an engine."""
    return MeasuredModel(
        engine.model.name, engine.loop.scheduler, engine.adapters, engine.responses, engine.settings.max_loras
    )


def describe(engine: Engine) -> str:
    """Return one line about what is served."""
    limits = engine.loop.scheduler.limits
    return (
        f"{engine.model.name} with {len(engine.adapters.catalog.entries)} adapters, {limits.num_slots} slots, "
        f"{limits.max_context} tokens of context, {limits.num_blocks} KV blocks"
    )
