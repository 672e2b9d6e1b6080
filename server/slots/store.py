"""Saves the KV of a slot's latest request to a file, and makes a saved one findable again for the next request with the
same beginning and adapter list.

What is saved is what the prefix cache still has of it: whole blocks. Copies run between steps, a few megabytes at a
time, so that no stream waits long; files are read and written on threads. What is found in the cache, and the order for
the copy, belong to one moment of the event loop: a step that is planned later, and might give a block to somebody else,
runs after the copy.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from scheduler.batch import BLOCK_SIZE, SamplingParams
from scheduler.cohort import Activation, AdapterId, cache_seed
from scheduler.errors import ShuttingDown
from scheduler.loop import StepLoop
from scheduler.request import Request
from server.adapters.catalog import shortest
from server.adapters.registry import ServedList
from server.adapters.resident import ResidentAdapter
from server.errors import BodyInvalid, RequestError, SlotNotSaved, SlotRefused
from server.slots.file import SavedAdapter, SlotFileError, SlotHeader, SlotReader, SlotWriter

_COPY_BYTES = 8 * 2**20
"""Copied between two steps."""
_NAME = re.compile(r"[^\x00-\x1f\x7f/\\:*?\"<>|.][^\x00-\x1f\x7f/\\:*?\"<>|]{0,199}")
"""Of a file: no folder, nothing hidden."""


class Pages(Protocol):
    """The KV cache, for whoever calls between steps."""

    def read(self, block_ids: Sequence[int]) -> bytes:
        """Return what blocks hold."""
        ...

    def write(self, block_ids: Sequence[int], content: bytes) -> None:
        """Write what `read` has returned."""
        ...


@dataclass(frozen=True, slots=True)
class Moved:
    """What was saved or restored."""

    num_tokens: int
    num_bytes: int
    duration_ms: float


class SlotStore:
    """The saved slots of one model."""

    def __init__(self, folder: Path, origin: Mapping[str, str], pages: Pages, block_bytes: int, loop: StepLoop) -> None:
        """`origin` names the model and its arithmetic."""
        self._folder = folder
        self._origin = dict(origin)
        self._pages = pages
        self._block_bytes = block_bytes
        self._loop = loop
        self._num_copied = max(_COPY_BYTES // block_bytes, 1)

    async def save(self, request: Request, filename: str, names: Mapping[AdapterId, str]) -> Moved:
        """Write the KV of a request, which may have ended, to a file. `names` of adapters are for messages. Raises
        SlotRefused, SlotNotSaved and BodyInvalid."""
        path, started_s = self._path(filename), time.monotonic()
        kv = self._loop.scheduler.kv
        num_blocks = len(kv.find(request))
        if num_blocks == 0:
            raise SlotRefused("Unable to save slot: it has no full block of tokens in the KV cache")
        saved = request.beginning(num_blocks * BLOCK_SIZE)  # which a running request may give up meanwhile
        header = SlotHeader(
            origin=self._origin,
            adapters=tuple(
                SavedAdapter(adapter.digest, scale, names.get(adapter, adapter.digest))
                for adapter, scale in request.key
            ),
            activations=_places(saved),
            tokens=saved.prompt,
            block_bytes=self._block_bytes,
        )
        num_written = 0
        with _told("Unable to save slot", SlotNotSaved):
            writer = await asyncio.to_thread(SlotWriter, path, header)
            try:
                # What is evicted meanwhile is left out.
                while block_ids := kv.find(saved)[num_written : num_written + self._num_copied]:
                    content = await self._loop.enqueue(partial(self._pages.read, block_ids))
                    await asyncio.to_thread(writer.append, content)
                    num_written += len(block_ids)
                num_bytes = await asyncio.to_thread(writer.finish)
            finally:
                writer.close()
        return Moved(num_written * BLOCK_SIZE, num_bytes, 1000 * (time.monotonic() - started_s))

    async def restore(self, filename: str, residents: Iterable[ResidentAdapter], served: ServedList | None) -> Moved:
        """Make the KV of a file findable. `residents` are the adapters in memory; `served` is the list that the file
        must be of, None: whichever it has. Raises SlotRefused where the file is no saved slot, or one of another model
        or list, and BodyInvalid."""
        path, started_s = self._path(filename), time.monotonic()
        limits = self._loop.scheduler.limits
        with _told("Unable to restore slot"):
            reader = await asyncio.to_thread(SlotReader, path, limits.max_context)
            try:
                self._check_origin(reader.header)
                if served is not None:
                    _check_list(reader.header, served)
                request = _request_of(reader.header, residents)
                num_restored = await self._restore(reader, request)
            finally:
                reader.close()
        num_bytes = reader.num_bytes
        return Moved(num_restored * BLOCK_SIZE, num_bytes, 1000 * (time.monotonic() - started_s))

    async def _restore(self, reader: SlotReader, request: Request) -> int:
        """Return how many blocks can be found then."""
        for start in range(0, reader.num_blocks, self._num_copied):
            stop = min(start + self._num_copied, reader.num_blocks)
            content = await asyncio.to_thread(reader.read, stop - start)
            if not self._loop.is_accepting:
                raise ShuttingDown
            placed = self._loop.scheduler.kv.adopt(request, start, stop)
            if placed is None:
                if start == 0:
                    raise SlotFileError(f"{stop} KV blocks are needed, and running requests leave too few")
                return start
            first, block_ids = placed
            if block_ids:
                mine = content[(first - start) * self._block_bytes :]
                # The blocks can be found already: whoever leaves must not take the order back.
                await asyncio.shield(self._loop.enqueue(partial(self._pages.write, block_ids, mine)))
        return reader.num_blocks

    def _check_origin(self, header: SlotHeader) -> None:
        for field, value in self._origin.items():
            saved = header.origin.get(field, "nothing")
            if saved != value:
                raise SlotFileError(f"it was saved by another {field}: {saved[:64]}, this server has {value}")
        if header.block_bytes != self._block_bytes:
            raise SlotFileError(f"its blocks have {header.block_bytes} bytes, those of this server {self._block_bytes}")

    def _path(self, filename: str) -> Path:
        if not _NAME.fullmatch(filename):
            raise BodyInvalid("Invalid filename")
        return self._folder / filename


def _places(request: Request) -> tuple[tuple[int, int], ...]:
    order = [adapter for adapter, _ in request.key]
    return tuple((start, order.index(adapter)) for start, adapter in request.activations)


def _request_of(header: SlotHeader, residents: Iterable[ResidentAdapter]) -> Request:
    """Return a request with the tokens and the list of a file. Raises SlotFileError."""
    known = {resident.id.digest: resident for resident in residents}
    if not all(adapter.digest in known for adapter in header.adapters):
        names = ", ".join(resident.name for resident in known.values())
        raise SlotFileError(
            f"it was saved under {_saved_list(header)}, and of adapters the server has {names or 'none'} in memory; "
            "'model' or 'lora' in the request loads a list"
        )
    ids = [known[adapter.digest].id for adapter in header.adapters]
    return Request(
        request_id=-1,
        # In the saved order, for sums follow it, and caches tell it from another one.
        key=tuple((adapter_id, adapter.scale) for adapter_id, adapter in zip(ids, header.adapters, strict=True)),
        prompt=header.tokens,
        sampling=SamplingParams(),
        max_new_tokens=1,
        activations=tuple(Activation(start, ids[place]) for start, place in header.activations),
    )


def _check_list(header: SlotHeader, served: ServedList) -> None:
    # An activated adapter that the tokens did not invoke was not in the list.
    expected = served.key, served.activate(header.tokens)[0]
    if tuple((adapter.digest, adapter.scale) for adapter in header.adapters) not in map(cache_seed, expected):
        names = {resident.id: resident.name for resident in served.lease.residents.values()}
        wanted = _list_text([(names[adapter], scale) for adapter, scale in served.key])
        raise SlotFileError(f"it was saved under {_saved_list(header)}, and the request is for {wanted}")


def _saved_list(header: SlotHeader) -> str:
    return _list_text([(adapter.name[:64], adapter.scale) for adapter in header.adapters])


def _list_text(parts: Sequence[tuple[str, float]]) -> str:
    named = ", ".join(f"{name}:{shortest(scale):.9g}" for name, scale in parts)
    return f"the adapter list {named}" if named else "the base model"


@contextmanager
def _told(what: str, of_system: type[RequestError] = SlotRefused) -> Iterator[None]:
    """Tell what is wrong with a file, or what the system says of it."""
    try:
        yield
    except SlotFileError as error:
        raise SlotRefused(f"{what}: {error}") from error
    except OSError as error:
        raise of_system(f"{what}: {error.strerror}") from error
