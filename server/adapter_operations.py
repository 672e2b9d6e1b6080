"""What operators do with adapters while the server runs: load one, put another in its place, unload one.

Requests that run or wait keep the adapters they came with, unless those are unloaded by force.
"""

from pathlib import Path

from model.adapters.tensors import AdapterError
from scheduler.events import FinishReason
from server.adapters.catalog import AdapterSource, NameRefused
from server.adapters.resident import AdapterListTooLong, Lease
from server.engine import Engine
from server.errors import AdapterRefused, AdapterUnknown


async def load(engine: Engine, name: str, path: Path, *, in_place: bool, is_pinned: bool | None) -> None:
    """Load an adapter, and let requests use it by its name from then on. Raises AdapterRefused, and nothing has changed
    then.

    in_place: an adapter of that name is replaced, for requests that come later; its id and its scale stay.
    is_pinned: whether it is never evicted; None as the one that it replaces, and no where there is none.
    """
    catalog, residency = engine.adapters.catalog, engine.adapters.residency
    present = catalog.named(name)
    if present is not None and not in_place:
        raise AdapterRefused(f"there is an adapter {name!r} already; with 'load_inplace' this one would replace it")
    source = AdapterSource.RUN_TIME if present is None else present.source
    if is_pinned is None:
        is_pinned = present is not None and present.is_pinned
    try:
        entry = catalog.prepare(name, str(path), source, is_pinned=is_pinned)
        lease = await residency.acquire([entry])
    except (AdapterError, AdapterListTooLong, NameRefused) as error:
        raise AdapterRefused(str(error)) from error
    try:
        replaced = catalog.put(entry)
    except NameRefused as error:  # another load of that name was faster
        residency.retire(entry)
        raise AdapterRefused(str(error)) from error
    finally:
        lease.release()
    if replaced is not None:
        residency.retire(replaced)


async def unload(engine: Engine, name: str, adapter_id: int | None, *, by_force: bool) -> None:
    """Take an adapter away, and return when its memory is free: after the requests that use it have ended, or by force
    after they have been ended with an error. Raises AdapterUnknown or AdapterRefused.
    """
    catalog, residency = engine.adapters.catalog, engine.adapters.residency
    entry = catalog.named(name)
    if entry is None:
        raise AdapterUnknown(f"there is no adapter {name!r}")
    if adapter_id is not None and adapter_id != entry.id:
        raise AdapterRefused(f"'lora_int_id' is {adapter_id}, but the id of the adapter {name!r} is {entry.id}")
    catalog.remove(entry)

    def end(lease: Lease) -> None:
        for request_id in engine.adapters.requests_under(lease):
            engine.loop.end(request_id, FinishReason.ERROR, f"the adapter {name!r} has been unloaded")

    await residency.unload(entry, end if by_force else None)
