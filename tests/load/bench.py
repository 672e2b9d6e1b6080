"""Load test of the demo server over HTTP: `make bench`. Prints a table; the last line is JSON.

usage: python -m tests.load.bench [--seconds N] [--port P] [server flags …]

Without --port the demo server is started with its default settings (and the server flags given). Every prompt is new,
so that the prefix cache plays no part; tokens are counted between the first and the last second of a scenario, when all
clients run."""

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tests.load.client import Stream, stream_completion
from tests.load.demo_server import demo_server

BASE: list[dict[str, float]] = [{"id": 0, "scale": 0.0}]
FOUR_LISTS: list[list[dict[str, float]]] = [
    BASE,
    [{"id": 0, "scale": 1.0}],
    [{"id": 1, "scale": 1.0}],
    [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.5}],
]
# Ordinary words of the demo model's vocabulary: prompts are drawn from the ids of whole words.
FIRST_ID, LAST_ID = 1000, 20000


@dataclass
class Outcome:
    """What a scenario measured."""

    name: str
    tokens_per_s: float
    ttft_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    jain: float


def jain_index(shares: list[float]) -> float:
    """Jain's fairness index: 1 where all shares are equal, 1/n where one has everything."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 0.0


def request_body(rng: random.Random, num_prompt: int, num_output: int, lora: list[dict[str, float]]) -> dict[str, Any]:
    """A request with a new random prompt, that generates exactly `num_output` tokens."""
    prompt = [rng.randint(FIRST_ID, LAST_ID) for _ in range(num_prompt)]
    return {"prompt": prompt, "n_predict": num_output, "ignore_eos": True, "lora": lora, "temperature": 0.0}


async def run_clients(port: int, lists: list[list[dict[str, float]]], seconds: float) -> list[list[Stream]]:
    """One client per entry of `lists`, each sending request after request for `seconds`; returns each client's
    streams."""
    until_s = time.perf_counter() + seconds

    async def client(index: int) -> list[Stream]:
        rng, streams = random.Random(index), []
        while time.perf_counter() < until_s:
            streams.append(await stream_completion(port, request_body(rng, 48, 64, lists[index]), until_s))
        return streams

    return await asyncio.gather(*(client(index) for index in range(len(lists))))


def measure(port: int, name: str, lists: list[list[dict[str, float]]], seconds: float) -> Outcome:
    """Run a scenario and condense it. Jain's index is over the tokens of the adapter lists."""
    start_s = time.perf_counter()
    clients = asyncio.run(run_clients(port, lists, seconds))
    first_s, last_s = start_s + 1.0, start_s + seconds
    counts = [sum(first_s <= t < last_s for stream in streams for t in stream.token_times_s) for streams in clients]
    per_list: dict[str, float] = {}
    for adapters, count in zip(lists, counts, strict=True):
        per_list[json.dumps(adapters)] = per_list.get(json.dumps(adapters), 0.0) + count
    streams = [stream for of_client in clients for stream in of_client if stream.token_times_s]
    gaps_ms = sorted(1e3 * gap for stream in streams for gap in stream.gaps_s)
    return Outcome(
        name=name,
        tokens_per_s=sum(counts) / (last_s - first_s),
        ttft_ms=1e3 * statistics.median(stream.ttft_s for stream in streams),
        itl_p50_ms=gaps_ms[len(gaps_ms) // 2],
        itl_p99_ms=gaps_ms[len(gaps_ms) * 99 // 100],
        jain=jain_index(list(per_list.values())),
    )


def first_token_ms(port: int, num_prompt: int = 60, rounds: int = 11) -> float:
    """Median time to the first token of a new prompt on an idle server."""
    rng = random.Random(1)
    bodies = [request_body(rng, num_prompt, 1, BASE) for _ in range(rounds)]
    return 1e3 * statistics.median(asyncio.run(stream_completion(port, body)).ttft_s for body in bodies)


def main() -> None:
    """Run all scenarios and print them."""
    parser = argparse.ArgumentParser(description="load test of the demo server")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each scenario")
    parser.add_argument("--port", type=int, help="use the server that listens there")
    options, flags = parser.parse_known_args()
    scenarios = {
        "1 client, base": [BASE],
        "1 client, adapter": [FOUR_LISTS[1]],
        "4 clients, base": [BASE] * 4,
        "16 clients, base": [BASE] * 16,
        "16 clients, adapter": [FOUR_LISTS[1]] * 16,
        "16 clients, four lists": FOUR_LISTS * 4,
    }
    with demo_server(*flags) if options.port is None else nullcontext(options.port) as port:
        first_ms = first_token_ms(port)
        print(f"first token of a 60-token prompt, idle server: {first_ms:.0f} ms (median)")
        print(f"{'scenario':24} {'tok/s':>8} {'TTFT ms':>8} {'ITL p50':>8} {'ITL p99':>8} {'Jain':>6}")
        outcomes = []
        for name, lists in scenarios.items():
            outcome = measure(port, name, lists, options.seconds)
            outcomes.append(outcome)
            print(
                f"{outcome.name:24} {outcome.tokens_per_s:8.1f} {outcome.ttft_ms:8.0f} {outcome.itl_p50_ms:8.1f}"
                f" {outcome.itl_p99_ms:8.1f} {outcome.jain:6.3f}",
                flush=True,
            )
    print(json.dumps({"first_token_ms": round(first_ms, 1), "scenarios": [vars(outcome) for outcome in outcomes]}))


if __name__ == "__main__":
    main()
