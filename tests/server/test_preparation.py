"""What a list needs is built beside the steps: the model's thread never builds it, and nobody else waits for it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest
from starlette.types import Message

from scheduler.batch import SamplingParams
from scheduler.cohort import BASE, Activation, CohortKey
from scheduler.request import Request
from server.adapters.registry import ServedList
from server.adapters.resident import AdapterUnloaded
from server.errors import ClientLeft, TimeUp
from server.generation import Choice
from server.preparation import prepare
from tests.server.fakes import FakeExecutor, fake_engine


class HeldLists:
    """Lists that are prepared when the test says so."""

    def __init__(self) -> None:
        self.ready: set[CohortKey] = {BASE}
        self.asked: list[CohortKey] = []
        self.may_end = asyncio.Event()

    def is_prepared(self, key: CohortKey) -> bool:
        """Whether it has been prepared."""
        return key in self.ready

    async def prepare(self, key: CohortKey) -> None:
        """Wait for `may_end`."""
        self.asked.append(key)
        await self.may_end.wait()
        self.ready.add(key)


class Scene:
    """A request for both adapters of a server, whose client may leave."""

    def __init__(self) -> None:
        self.engine = fake_engine(FakeExecutor())
        self.lists = HeldLists()
        self.left = asyncio.Event()
        served = self.engine.adapters.try_serve(self.engine.adapters.catalog.resolve(None, None))
        assert served is not None
        self.served: ServedList = served

    def choice(self, number: int = 0, activations: tuple[Activation, ...] = ()) -> Choice:
        """Return a choice under the complete list."""
        request = Request(number, self.served.key, (1, 2, 3), SamplingParams(), 4, activations=activations)
        return Choice(number, 0, request, self.served)

    async def receive(self) -> Message:
        """Nothing more comes from the client but its leaving."""
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def prepare(self, choices: Sequence[Choice], left_s: float | None = None) -> None:
        await prepare(self.lists, choices, self.receive, left_s)


def play(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scene())


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_list_that_is_ready_is_not_waited_for() -> None:
    async def scene() -> None:
        it = Scene()
        it.lists.ready.add(it.served.key)
        with pytest.raises(StopIteration):
            it.prepare([it.choice()]).send(None)  # ends without giving way to anybody
        assert it.lists.asked == []
        assert it.served.waited_s == 0

    play(scene)


def test_a_new_list_is_prepared_once_for_all_choices() -> None:
    async def scene() -> None:
        it = Scene()
        preparing = asyncio.create_task(it.prepare([it.choice(0), it.choice(1)]))
        await let_others_run()
        assert not preparing.done()
        it.lists.may_end.set()
        await preparing
        assert it.lists.asked == [it.served.key]
        assert it.served.waited_s > 0

    play(scene)


def test_every_list_along_an_activated_prompt_is_prepared() -> None:
    async def scene() -> None:
        it = Scene()
        (first, _), (second, scale) = it.served.key
        it.lists.may_end.set()
        await it.prepare([it.choice(0, (Activation(1, first),))])
        assert it.lists.asked == [((second, scale),), it.served.key]

    play(scene)


def test_a_client_that_leaves_waits_no_longer() -> None:
    async def scene() -> None:
        it = Scene()
        preparing = asyncio.create_task(it.prepare([it.choice()]))
        await let_others_run()
        it.left.set()
        with pytest.raises(ClientLeft):
            await preparing

    play(scene)


def test_the_time_of_a_request_runs_while_its_list_is_prepared() -> None:
    async def scene() -> None:
        it = Scene()
        with pytest.raises(TimeUp, match="was not ready in time"):
            await it.prepare([it.choice()], left_s=0.0)

    play(scene)


def test_a_list_that_was_taken_away_meanwhile_is_not_begun() -> None:
    async def scene() -> None:
        it = Scene()
        preparing = asyncio.create_task(it.prepare([it.choice()]))
        await let_others_run()
        it.served.lease.is_revoked = True
        it.lists.may_end.set()
        with pytest.raises(AdapterUnloaded, match="adapter0, adapter1"):
            await preparing

    play(scene)
