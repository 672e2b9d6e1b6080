"""From the arrival of a request to its adapter list: waits for adapters that must be loaded as long as the client stays
and its time is not over, and gives the list back where there is no answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from starlette.requests import Request

from server.adapters.catalog import AdapterChoice
from server.adapters.registry import ServedList
from server.engine import Engine
from server.errors import ClientLeft, ModelNotFound, ModelUnknown, TimeUp
from server.schemas import ListFields


@asynccontextmanager
async def list_for_answer(request: Request, engine: Engine, fields: ListFields) -> AsyncIterator[ServedList]:
    """Give the list that a body asks for to the answer that the block makes; the answer releases it. It is released
    here where the block raises. Raises what `AdapterRegistry.acquire` does, ClientLeft and TimeUp.
    """
    served = await _acquire(request, engine, fields)
    with ExitStack() as unless_answered:
        unless_answered.callback(served.release)
        yield served
        unless_answered.pop_all()


@asynccontextmanager
async def list_for_openai_answer(request: Request, engine: Engine, fields: ListFields) -> AsyncIterator[ServedList]:
    """Do as `list_for_answer` does, for a route of OpenAI's: an unknown model is ModelNotFound."""
    try:
        async with list_for_answer(request, engine, fields) as served:
            yield served
    except ModelUnknown as error:
        raise ModelNotFound(str(error)) from error


@asynccontextmanager
async def list_for_now(request: Request, engine: Engine, fields: ListFields) -> AsyncIterator[ServedList]:
    """Give the list that a body asks for to the block. Raises as `list_for_answer` does."""
    served = await _acquire(request, engine, fields)
    try:
        yield served
    finally:
        served.release()


async def _acquire(request: Request, engine: Engine, fields: ListFields) -> ServedList:
    # Resolved before anything is awaited: scales that are set later are for later requests.
    catalog = engine.adapters.catalog
    choice, name = catalog.resolve(fields.lora, fields.model), catalog.chosen_name(fields.lora, fields.model)
    served = engine.adapters.try_serve(choice, name)
    return await _wait(request, engine, choice, name) if served is None else served


async def _wait(request: Request, engine: Engine, choice: AdapterChoice, name: str | None) -> ServedList:
    timeout_s = engine.settings.request_timeout or None
    arrived_s = time.monotonic()
    loading = asyncio.create_task(engine.adapters.serve(choice, name))
    leaving = asyncio.create_task(_disconnect(request))
    is_taken = False
    try:
        await asyncio.wait((loading, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            served = loading.result()
            served.waited_s = time.monotonic() - arrived_s
            is_taken = True
            return served
        if leaving.done():
            raise ClientLeft
        names = ", ".join(entry.name for entry, _ in choice)
        raise TimeUp(f"the adapters of the request ({names}) were not loaded within {timeout_s:g} s; try again later")
    finally:
        for task in (loading, leaving):
            task.cancel()
        outcome, _ = await asyncio.gather(loading, leaving, return_exceptions=True)
        if isinstance(outcome, ServedList) and not is_taken:
            outcome.release()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
