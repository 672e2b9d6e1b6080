"""Loads and unloads that meet each other."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from server import adapter_operations
from server.adapters.catalog import AdapterEntry, AdapterSource
from server.adapters.resident import ResidentAdapter
from server.engine import Engine
from server.errors import AdapterRefused, AdapterUnknown
from tests.server.fakes import TIMEOUT_S, FakeExecutor, FakeLoader, fake_engine, fake_settings


class SlowLoader(FakeLoader):
    """Loads that begin together end together."""

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        await asyncio.wait([asyncio.create_task(asyncio.sleep(0)) for _ in range(3)])
        return await super().load(entry, load_id)


def run(main: Callable[[Engine], Coroutine[None, None, None]], **settings: object) -> None:
    async def bounded() -> None:
        engine = fake_engine(FakeExecutor(), fake_settings().model_copy(update=settings), loader=SlowLoader())
        async with asyncio.timeout(TIMEOUT_S):
            await main(engine)
        await engine.adapters.residency.close()
        assert engine.adapters.residency.num_references == 0

    asyncio.run(bounded())


def names(engine: Engine) -> list[str]:
    return sorted(resident.name for resident in engine.adapters.residency.residents)


def load(
    engine: Engine, name: str, path: str, *, in_place: bool = False, is_pinned: bool | None = None
) -> Coroutine[None, None, None]:
    return adapter_operations.load(engine, name, Path(path), in_place=in_place, is_pinned=is_pinned)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_of_two_loads_of_one_name_one_is_refused_and_frees_what_it_has_loaded(is_pinned: bool) -> None:
    async def main(engine: Engine) -> None:
        loads = [load(engine, "tone", path, is_pinned=is_pinned) for path in ("first", "second")]
        outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), AdapterRefused]
        await engine.adapters.residency.close()
        assert names(engine) == ["adapter0", "adapter1", "tone"]
        tone = engine.adapters.catalog.named("tone")
        assert tone is not None
        assert tone.path == "first"

    run(main)


def test_of_two_replacements_of_one_adapter_the_later_stays_alone() -> None:
    async def main(engine: Engine) -> None:
        await asyncio.gather(*(load(engine, "adapter0", path, in_place=True) for path in ("first", "second")))
        await engine.adapters.residency.close()
        assert names(engine) == ["adapter0", "adapter1"]
        entry = engine.adapters.catalog.named("adapter0")
        assert entry is not None
        resident = engine.adapters.residency.resident(entry)
        assert resident is not None
        assert (entry.path, resident.path) == ("second", "second")

    run(main)


def test_replacement_keeps_what_the_adapter_was_and_is_pinned_as_told() -> None:
    async def main(engine: Engine) -> None:
        for is_pinned, wanted in ((None, True), (False, False), (None, False), (True, True)):
            await load(engine, "adapter0", "new", in_place=True, is_pinned=is_pinned)
            entry = engine.adapters.catalog.named("adapter0")
            assert entry is not None
            assert (entry.id, entry.source, entry.is_pinned) == (0, AdapterSource.COMMAND_LINE, wanted)
        await load(engine, "tone", "tone")
        tone = engine.adapters.catalog.named("tone")
        assert tone is not None
        assert (tone.source, tone.is_pinned) == (AdapterSource.RUN_TIME, False)

    run(main)


def test_adapter_that_is_unloaded_while_its_replacement_loads_is_there_again_afterwards() -> None:
    async def main(engine: Engine) -> None:
        loading = asyncio.create_task(load(engine, "adapter0", "new", in_place=True))
        await asyncio.wait([loading], timeout=0)
        await adapter_operations.unload(engine, "adapter0", None, by_force=False)
        await loading
        entry = engine.adapters.catalog.named("adapter0")
        assert entry is not None
        assert entry.path == "new"
        assert names(engine) == ["adapter0", "adapter1"]

    run(main)


def test_of_two_unloads_one_finds_nothing() -> None:
    async def main(engine: Engine) -> None:
        unloads = [adapter_operations.unload(engine, "adapter0", None, by_force=False) for _ in range(2)]
        outcomes = await asyncio.gather(*unloads, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), AdapterUnknown]
        assert names(engine) == ["adapter1"]

    run(main)


def test_load_for_which_there_is_no_room_waits_until_there_is() -> None:
    async def main(engine: Engine) -> None:
        await load(engine, "tone", "tone")
        tone = engine.adapters.catalog.named("tone")
        assert tone is not None
        lease = engine.adapters.residency.try_acquire([tone])
        assert lease is not None
        loading = asyncio.create_task(load(engine, "facts", "facts"))
        while engine.adapters.residency.num_waiting == 0:
            await asyncio.wait([loading], timeout=0)
        assert not loading.done()
        lease.release()
        await loading
        assert names(engine) == ["adapter0", "adapter1", "facts"]

    run(main, max_loras=3)
