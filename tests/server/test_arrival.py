"""Waiting for the adapters of a request: as long as its client stays and its time is not over."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from model.adapters.tensors import AdapterError
from server.adapters.catalog import AdapterEntry, AdapterSource
from server.adapters.registry import ServedList
from server.adapters.resident import ResidentAdapter
from server.arrival import list_for_answer, list_for_now
from server.engine import Engine
from server.errors import ClientLeft, ModelUnknown, TimeUp
from server.schemas import ListFields
from tests.server.fakes import FakeExecutor, FakeLoader, fake_engine, fake_settings

NEW = ListFields(model="new")


class SlowLoader(FakeLoader):
    """Loads when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        """Wait for `may_load`."""
        await self.may_load.wait()
        return await super().load(entry, load_id)


class Scene:
    """A server with an adapter that is not in memory, and a client that may leave."""

    def __init__(self, request_timeout: float = 0) -> None:
        self.loader = SlowLoader()
        self.left = asyncio.Event()
        settings = fake_settings().model_copy(update={"request_timeout": request_timeout})
        self.engine: Engine = fake_engine(FakeExecutor(), settings, loader=self.loader)
        self.engine.adapters.catalog.add("new", "new.gguf", AdapterSource.RUN_TIME)
        self.request = Request({"type": "http", "headers": []}, receive=self.receive)

    async def receive(self) -> Message:
        """Nothing more comes from the client but its leaving."""
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def num_references(self) -> int:
        return self.engine.adapters.residency.num_references

    async def arrive(self, fields: ListFields = NEW) -> ServedList:
        async with list_for_answer(self.request, self.engine, fields) as served:
            return served

    async def fail(self, fields: ListFields) -> None:
        """Arrive, and find something wrong."""
        async with list_for_answer(self.request, self.engine, fields):
            assert self.num_references == 1
            raise KeyError


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    asyncio.run(run())


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_answer_keeps_its_list_and_a_failure_gives_it_back() -> None:
    async def scene() -> None:
        it = Scene()
        served = await it.arrive(ListFields(model="adapter0"))
        assert it.num_references == 1
        served.release()
        with pytest.raises(KeyError):
            await it.fail(ListFields(model="adapter0"))
        assert it.num_references == 0

    play(scene)


def test_a_list_for_now_is_given_back_in_any_case() -> None:
    async def scene() -> None:
        it = Scene()
        async with list_for_now(it.request, it.engine, ListFields(model="adapter0")):
            assert it.num_references == 1
        assert it.num_references == 0
        with pytest.raises(ModelUnknown):
            async with list_for_now(it.request, it.engine, ListFields(model="fake:nobody")):
                pass

    play(scene)


def test_a_request_waits_for_its_adapter_and_others_do_not() -> None:
    async def scene() -> None:
        it = Scene()
        waiting = asyncio.create_task(it.arrive())
        await let_others_run()
        assert not waiting.done()
        other = await it.arrive(ListFields(model="adapter1"))
        assert other.model == "adapter1"
        it.loader.may_load.set()
        served = await waiting
        assert [resident.name for resident in served.lease.residents.values()] == ["new"]
        assert it.loader.loaded == ["new"]
        assert it.num_references == 2
        assert served.waited_s > 0 == other.waited_s

    play(scene)


def test_the_list_is_that_of_the_arrival() -> None:
    async def scene() -> None:
        it = Scene()
        it.engine.adapters.catalog.set_scales([{"name": "new", "scale": 2}])
        waiting = asyncio.create_task(it.arrive(ListFields()))
        await let_others_run()
        it.engine.adapters.catalog.set_scales([])
        it.loader.may_load.set()
        assert [scale for _, scale in (await waiting).key] == [2.0]

    play(scene)


def test_a_client_that_leaves_waits_no_longer() -> None:
    async def scene() -> None:
        it = Scene()
        waiting = asyncio.create_task(it.arrive())
        await let_others_run()
        it.left.set()
        with pytest.raises(ClientLeft):
            await waiting
        assert it.engine.adapters.residency.num_waiting == 0
        it.loader.may_load.set()
        await it.engine.adapters.residency.close()
        assert it.num_references == 0

    play(scene)


def test_a_client_that_leaves_at_the_moment_of_the_load_holds_nothing() -> None:
    async def scene() -> None:
        it = Scene()
        waiting = asyncio.create_task(it.arrive())
        await let_others_run()
        it.left.set()
        it.loader.may_load.set()
        try:
            served = await waiting
        except ClientLeft:
            pass
        else:
            served.release()
        await it.engine.adapters.residency.close()
        assert it.num_references == 0

    play(scene)


def test_a_cancelled_arrival_holds_nothing() -> None:
    async def scene() -> None:
        it = Scene()
        waiting = asyncio.create_task(it.arrive())
        await let_others_run()
        waiting.cancel()
        it.loader.may_load.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await it.engine.adapters.residency.close()
        assert it.num_references == 0

    play(scene)


def test_the_time_of_a_request_runs_while_it_waits() -> None:
    async def scene() -> None:
        it = Scene(request_timeout=0.01)
        with pytest.raises(TimeUp, match=r"\(new\) were not loaded within 0.01 s"):
            await it.arrive()
        assert it.engine.adapters.residency.num_waiting == 0

    play(scene)


def test_an_adapter_that_cannot_be_loaded_is_an_error_for_whoever_waits() -> None:
    def refuse(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        raise AdapterError(f"{entry.name} is damaged")

    async def scene() -> None:
        it = Scene()
        waiting = [asyncio.create_task(it.arrive()) for _ in range(2)]
        await let_others_run()
        it.loader.make = refuse
        it.loader.may_load.set()
        for each in waiting:
            with pytest.raises(AdapterError, match="new is damaged"):
                await each
        assert it.num_references == 0

    play(scene)
