"""Before the requests of an answer reach the scheduler: the stacks of their adapter lists are built on another thread,
so that no step has to, and no other stream waits for it.

Asked of every new request, and answered at once for a list whose stack is there.
"""

import asyncio
import time
from collections.abc import Sequence

from starlette.types import Receive

from scheduler.cohort import CohortKey, keys_along
from server.adapters.resident import AdapterUnloaded, ListPreparer
from server.errors import ClientLeft, TimeUp
from server.generation import Choice


async def prepare(lists: ListPreparer, choices: Sequence[Choice], receive: Receive, left_s: float | None) -> None:
    """Return when a step can begin with what the choices need. Nothing is awaited where it can already.

    Raises ClientLeft, TimeUp after `left_s` seconds (None: never), and AdapterUnloaded where an adapter of the list is
    being unloaded by force by then. The time is added to what the list has waited.
    """
    requests = [choice.request for choice in choices]
    keys = dict.fromkeys(key for each in requests for _, key in keys_along(each.key, each.activations))
    missing = [key for key in keys if not lists.is_prepared(key)]
    if not missing:
        return
    started_s = time.monotonic()
    await _while_client_waits(lists, missing, receive, left_s)
    for served in {id(choice.served): choice.served for choice in choices}.values():
        served.waited_s += time.monotonic() - started_s
        if served.lease.is_revoked:
            raise AdapterUnloaded(", ".join(entry.name for entry in served.lease.residents))


async def _while_client_waits(
    lists: ListPreparer, keys: Sequence[CohortKey], receive: Receive, left_s: float | None
) -> None:
    preparing = asyncio.create_task(_prepare_all(lists, keys))
    leaving = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((preparing, leaving), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if preparing.done():
            return preparing.result()
        if leaving.done():
            raise ClientLeft
        raise TimeUp("the adapter list of the request was not ready in time; try again later")
    finally:
        for task in (preparing, leaving):
            task.cancel()
        await asyncio.gather(preparing, leaving, return_exceptions=True)


async def _prepare_all(lists: ListPreparer, keys: Sequence[CohortKey]) -> None:
    for key in keys:
        await lists.prepare(key)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
