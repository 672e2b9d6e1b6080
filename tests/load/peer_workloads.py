"""What is measured, and the clients that do it. It must not know which server answers.

Clients are closed loops: each sends a request, reads its stream to the end, and sends the next. Prompts are random
token ids, new for every request and equal for both servers (seeded by round, workload, client and request); answers
have a fixed length (but for the first of each client, which spread the clients over time), temperature 0, and no cache
of prompts is used.
"""

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import uvloop

from tests.load.bench import FIRST_ID, LAST_ID
from tests.load.client import Stream, get_json, stream_completion
from tests.load.peer_figures import Figures, Span, condense
from tests.load.peer_servers import Setup

AdapterList: TypeAlias = tuple[tuple[int, float], ...]
"""Pairs (id, scale). Empty: the request has no field `lora`."""

NO_ADAPTERS = Setup("base", slots=32, context=256)
TWO_ADAPTERS = Setup("adapters", slots=32, context=256, num_adapters=2)
LONG = Setup("long", slots=8, context=2304)
LEAN = Setup("start", slots=4, context=512, is_lean=True)

ADAPTER: AdapterList = ((0, 1.0), (1, 0.0))
FOUR_LISTS: tuple[AdapterList, ...] = (
    ((0, 0.0), (1, 0.0)),
    ADAPTER,
    ((0, 0.0), (1, 1.0)),
    ((0, 0.5), (1, 0.5)),
)
_LONGEST_S = 600.0
_IDLE_S = 300.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Clients and what they send."""

    name: str
    setup: Setup
    lists: tuple[AdapterList, ...]
    """One for each client."""
    num_prompt: int = 48
    num_output: int = 64
    requests_per_client: int = 0
    """0: as many as come to their end in the time given."""
    counts_prompts: bool = False
    """Whether its speed is that of prompts."""

    def first_output(self, client: int) -> int:
        """Return the length of a client's first answer.

        Clients that start together and have answers of one length would march in step, prompts all at once and then
        none; how many of these waves fall into the time that counts would be chance.
        """
        if self.requests_per_client:
            return self.num_output
        return -(-self.num_output * (client + 1) // len(self.lists))

    def shortened(self) -> "Workload":
        """Return what takes less time where the number of requests is fixed: two clients, a request each."""
        return replace(self, lists=self.lists[:2], requests_per_client=1) if self.requests_per_client else self


WORKLOADS = (
    *(Workload(f"base-{n}", NO_ADAPTERS, ((),) * n) for n in (1, 4, 16, 32)),
    *(Workload(f"adapter-{n}", TWO_ADAPTERS, (ADAPTER,) * n) for n in (1, 4, 16, 32)),
    Workload("four-lists-16", TWO_ADAPTERS, FOUR_LISTS * 4),
    Workload("long-prompts", LONG, ((),) * 4, 1500, 4, requests_per_client=2, counts_prompts=True),
    Workload("long-contexts", LONG, ((),) * 8, 2000, 128, requests_per_client=1),
    Workload("start", LEAN, ((),) * 4),
)


def choose(names: str) -> tuple[Workload, ...]:
    """Return the workloads that are named, separated by commas: by a whole name, or by the beginning of some.

    Raises SystemExit for a name that is none.
    """
    chosen: set[str] = set()
    for name in names.split(","):
        found = {w.name for w in WORKLOADS if w.name == name} or {w.name for w in WORKLOADS if w.name.startswith(name)}
        if not found:
            raise SystemExit(f"there is no workload {name!r}; there are {', '.join(w.name for w in WORKLOADS)}")
        chosen |= found
    return tuple(workload for workload in WORKLOADS if workload.name in chosen)


@dataclass(frozen=True, slots=True)
class Times:
    """How long a timed workload runs: seconds that do not count, then seconds that do."""

    warm_s: float
    counted_s: float


def measure(port: int, workload: Workload, round_id: int, times: Times) -> Figures:
    """Run a workload once, and leave the server idle. Raises HttpError or ConnectionError where a request fails."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(port, workload, round_id, times))


async def _measure(port: int, workload: Workload, round_id: int, times: Times) -> Figures:
    streams: list[list[Stream]] = [[] for _ in workload.lists]
    start_s = time.perf_counter()
    clients = [
        asyncio.create_task(_client(port, workload, index, round_id, streams[index]))
        for index in range(len(workload.lists))
    ]
    is_timed = not workload.requests_per_client
    wait_s = times.warm_s + times.counted_s if is_timed else _LONGEST_S
    done, running = await asyncio.wait(clients, timeout=wait_s, return_when=asyncio.FIRST_EXCEPTION)
    end_s = time.perf_counter()
    for client in running:
        client.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for client in done:
        client.result()
    if running and not is_timed:
        raise RuntimeError(f"{workload.name}: not done in {_LONGEST_S} s")
    await _until_idle(port)
    span = Span(start_s + times.warm_s, start_s + wait_s) if is_timed else Span(start_s, end_s)
    names = [str(adapters) for adapters in workload.lists]
    return condense(names, streams, span, workload.num_prompt)


async def _client(port: int, workload: Workload, index: int, round_id: int, streams: list[Stream]) -> None:
    rng = random.Random(f"{round_id} {workload.name} {index}")
    while not workload.requests_per_client or len(streams) < workload.requests_per_client:
        num_output = workload.num_output if streams else workload.first_output(index)
        streams.append(Stream(time.perf_counter()))
        await stream_completion(port, _body(rng, workload, num_output, workload.lists[index]), stream=streams[-1])


def _body(rng: random.Random, workload: Workload, num_output: int, adapters: AdapterList) -> dict[str, Any]:
    return {
        "prompt": [rng.randint(FIRST_ID, LAST_ID) for _ in range(workload.num_prompt)],
        "n_predict": num_output,
        "ignore_eos": True,
        "temperature": 0.0,
        "cache_prompt": False,
        **lora_field(adapters),
    }


def lora_field(adapters: AdapterList) -> dict[str, Any]:
    """Return the part of a request's body that names its adapter list."""
    return {"lora": [{"id": index, "scale": scale} for index, scale in adapters]} if adapters else {}


async def _until_idle(port: int) -> None:
    """Wait until the server has noticed that clients have hung up."""
    until_s = time.perf_counter() + _IDLE_S
    while any(slot["is_processing"] for slot in await get_json(port, "/slots")):
        if time.perf_counter() > until_s:
            raise RuntimeError(f"requests whose clients hung up still run after {_IDLE_S} s")
        await asyncio.sleep(0.05)
