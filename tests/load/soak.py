"""Zipf traffic over many adapters with few in memory: clients that check every token, clients that hang up at any
moment, and a watch over the server's memory and gauges. What a run saw is returned; what is right is the test's to say.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.load.client import Stream, get_text, stream_completion
from tests.load.stamps import FIRST_STAMP, stamp_name

MAX_TOKENS = 24
BASE_NAME = "base-model"
_NUM_BASE_PROMPTS = 16
_WATCH_S = 1.0


@dataclass(frozen=True)
class Ask:
    """One request, and the tokens that are its answer."""

    body: dict[str, Any]
    tokens: list[int]
    stamp: int | None
    """The adapter that says so; None where the base model answers."""


@dataclass
class Traffic:
    """What the clients saw."""

    num_answers: int = 0
    num_hung_up: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    asked_for: set[int] = field(default_factory=set)


@dataclass
class Watch:
    """What the server showed while it ran, once a second."""

    times_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    num_resident: list[float] = field(default_factory=list)

    def rss_between(self, first_s: float, last_s: float) -> list[int]:
        """The resident set sizes between two times."""
        return [rss for at_s, rss in zip(self.times_s, self.rss_bytes, strict=True) if first_s <= at_s <= last_s]


def zipf(num_adapters: int, exponent: float = 1.0) -> list[float]:
    """Cumulative weights of Zipf's law."""
    return list(itertools.accumulate(1 / (rank + 1) ** exponent for rank in range(num_adapters)))


async def base_answers(port: int) -> list[Ask]:
    """Some requests of the base model, and what it answers while nothing else runs."""
    asks = []
    for seed in range(_NUM_BASE_PROMPTS):
        rng = random.Random(1000 + seed)
        body: dict[str, Any] = {"prompt": _prompt(rng), "n_predict": MAX_TOKENS, "temperature": 0, "model": BASE_NAME}
        asks.append(Ask(body, (await stream_completion(port, body)).token_ids, None))
    return asks


def _prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(256) for _ in range(rng.randrange(4, 40))]


def choose(rng: random.Random, cumulative: Sequence[float], of_base: Sequence[Ask]) -> Ask:
    """A request by name or by list: mostly of one adapter, some mix two, some want none."""
    kind = rng.random()
    if kind < 0.05:
        ask, length = rng.choice(of_base), rng.randint(1, MAX_TOKENS)
        return Ask(ask.body | {"n_predict": length}, ask.tokens[:length], None)
    [number, other] = rng.choices(range(len(cumulative)), cum_weights=cumulative, k=2)
    length = rng.randint(1, MAX_TOKENS)
    body: dict[str, Any] = {"prompt": _prompt(rng), "n_predict": length, "temperature": 0}
    if kind < 0.2 and other != number:
        lists = [{"name": stamp_name(number), "scale": 1.0}, {"name": stamp_name(other), "scale": 0.5}]
        body |= {"lora": lists}
    elif kind < 0.5:
        body |= {"lora": [{"name": stamp_name(number), "scale": rng.choice([0.5, 1.0])}]}
    else:
        body |= {"model": stamp_name(number)}
    return Ask(body, [FIRST_STAMP + number] * length, number)


async def run_traffic(
    port: int, num_clients: int, num_adapters: int, seconds: float, of_base: Sequence[Ask]
) -> Traffic:
    """Run the clients for `seconds`, then let every request end."""
    traffic = Traffic()
    until_s = time.perf_counter() + seconds
    cumulative = zipf(num_adapters)

    async def client(index: int) -> None:
        rng = random.Random(index)
        while time.perf_counter() < until_s:
            ask = choose(rng, cumulative, of_base)
            if ask.stamp is not None:
                traffic.asked_for.add(ask.stamp)
            try:
                if rng.random() < 0.15:
                    await _hang_up(port, ask, rng)
                    traffic.num_hung_up += 1
                else:
                    _check(traffic, ask, await stream_completion(port, ask.body))
            except (OSError, ConnectionError, RuntimeError, ValueError, IndexError) as error:
                traffic.errors.append(f"{type(error).__name__}: {error}; {ask.body}")

    await asyncio.gather(*(client(index) for index in range(num_clients)))
    return traffic


def _check(traffic: Traffic, ask: Ask, stream: Stream) -> None:
    traffic.num_answers += 1
    traffic.ttfts_s.append(stream.ttft_s)
    if stream.token_ids != ask.tokens:
        traffic.wrong.append(f"{stream.token_ids}, not {ask.tokens}, for {ask.body}")


async def _hang_up(port: int, ask: Ask, rng: random.Random) -> None:
    """Send a request and leave: at once, while an adapter loads, while the request waits, or in the middle."""
    answering = asyncio.create_task(stream_completion(port, ask.body | {"n_predict": 500}))
    await asyncio.wait([answering], timeout=rng.choice([0.0, 0.002, 0.02, 0.2]))
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


class Watcher:
    """Watches a server while traffic runs."""

    def __init__(self, port: int, pid: int) -> None:
        self.seen = Watch()
        self._port = port
        self._pid = pid

    async def run(self) -> None:
        """Take notes until cancelled."""
        while True:
            self.seen.num_resident.append((await gauges(self._port))["cohort_adapters_resident"])
            self.seen.times_s.append(time.perf_counter())
            self.seen.rss_bytes.append(rss_bytes(self._pid))
            await asyncio.sleep(_WATCH_S)


async def gauges(port: int) -> dict[str, float]:
    """The metrics without labels, by name."""
    families = text_string_to_metric_families(await get_text(port, "/metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def rss_bytes(pid: int) -> int:
    """The resident set size of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory any more")
