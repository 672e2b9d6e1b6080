"""Adapters on their way into memory and out of it: the tasks that load and drop them, each kept until it has ended.

It decides nothing; residency.py says what moves, and is told when it has."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from scheduler.errors import ShuttingDown
from server.adapters.memory import AdapterMemory, Place
from server.adapters.resident import (
    AdapterDropped,
    AdapterLoaded,
    AdapterLoader,
    AdapterLoadFailed,
    ResidencyEvent,
    ResidentAdapter,
)

log = logging.getLogger(__name__)


class MoveEnds(Protocol):
    """Who is told when a move has ended."""

    def loaded(self, place: Place) -> None:
        """An adapter is in its place."""
        ...

    def load_failed(self, place: Place, error: BaseException) -> None:
        """A place will stay empty, and has been given up."""
        ...

    def dropped(self) -> None:
        """There is room again."""
        ...


class AdapterMoves:
    """Begins loads and drops, and keeps `memory` true when they end."""

    def __init__(
        self,
        loader: AdapterLoader,
        memory: AdapterMemory,
        load_ids: Iterator[int],
        observe: Callable[[ResidencyEvent], None],
        ends: MoveEnds,
    ) -> None:
        self._loader = loader
        self._memory = memory
        self._load_ids = load_ids
        self._observe = observe
        self._ends = ends
        self._tasks: set[asyncio.Task[None] | asyncio.Task[ResidentAdapter]] = set()

    def load(self, place: Place) -> None:
        """Begin to load the adapter that a place is promised to."""
        self._memory.begin_load(place)
        task = asyncio.create_task(self._loader.load(place.entry, next(self._load_ids)))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_loaded, place))

    def drop(self, place: Place, *, is_eviction: bool) -> None:
        """Begin to free an adapter that nobody uses; from now on nobody can."""
        assert place.resident is not None
        self._memory.begin_leaving(place)
        task = asyncio.create_task(self._loader.drop(place.resident))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_dropped, place, is_eviction))

    async def close(self) -> None:
        """Wait for all that has begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_loaded(self, place: Place, task: "asyncio.Task[ResidentAdapter]") -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._memory.arrive(place, task.result())
            self._observe(AdapterLoaded(task.result()))
            self._ends.loaded(place)
        else:
            log.warning("cannot load the adapter %r: %s", place.entry.name, error)
            self._memory.give_up(place)
            self._observe(AdapterLoadFailed(place.entry, error))
            self._ends.load_failed(place, error)

    def _on_dropped(self, place: Place, is_eviction: bool, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ShuttingDown):
            log.error("freeing the adapter %r failed", place.entry.name, exc_info=error)
        assert place.resident is not None
        self._memory.leave(place)
        self._observe(AdapterDropped(place.resident, is_eviction))
        self._ends.dropped()
