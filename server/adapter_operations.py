"""What operators do with adapters while the server runs: load one, put another in its place, unload one.

Requests that run or wait keep the adapters they came with, unless those are unloaded by force.
"""

from pathlib import Path

from model.adapter_tensors import AdapterError
from scheduler.events import FinishReason
from server.adapter_catalog import NameRefused
from server.engine import Engine
from server.errors import AdapterRefused, AdapterUnknown
from server.resident import AdapterListTooLong, Lease


async def load(engine: Engine, name: str, path: Path, *, in_place: bool, is_pinned: bool) -> None:
    """Load an adapter, and let requests use it by its name from then on. Raises AdapterRefused, and nothing has changed
    then.

    in_place: an adapter of that name is replaced, for requests that come later; its id and scale stay.
    """
    catalog, residency = engine.adapters.catalog, engine.adapters.residency
    if catalog.named(name) is not None and not in_place:
        raise AdapterRefused(f"there is an adapter {name!r} already; with 'load_inplace' this one would replace it")
    try:
        entry = catalog.prepare(name, str(path), is_pinned=is_pinned)
        lease = await residency.acquire([entry])
        try:
            replaced = catalog.put(entry)
        finally:
            lease.release()
    except NameRefused as error:  # perhaps another load of that name was faster
        raise AdapterRefused(str(error)) from error
    except (AdapterError, AdapterListTooLong) as error:
        raise AdapterRefused(str(error)) from error
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
