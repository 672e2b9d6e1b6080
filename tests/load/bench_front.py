"""What a streamed token costs outside the model: `make bench-front`. Prints a table; the last line is JSON.

usage: python -m tests.load.bench_front [--steps N]

The real server, from HTTP to the step loop, around a model that computes nothing and gives every stream a token at a
fixed rate. What counts is CPU time of the server's process without the model's own, so that other programs on the
machine disturb it little; the clients are a process of their own, and so is the server for each path: what one has left
in memory costs the next up to a third."""

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

import uvicorn

from scheduler.batch import BLOCK_SIZE, Batch, StepOutput
from scheduler.core import SchedulerLimits
from server.engine import Engine
from server.lifecycle import Service, listen
from server.settings import Settings
from tests.server.fakes import BODIES, N_CTX, FakeExecutor, fake_engine, fake_settings

LOADS = ((256, 20.0), (16, 64.0))
"""Streams, and the tokens a second of each."""
PATHS = ("/v1/completions", "/v1/chat/completions", "/completion")
NUM_WARM_UP = 10
"""Steps of all streams that do not count."""
MAX_STEPS = 160
"""So that streams which begin at different times, and fit in the context, run together for that long."""


@dataclass(frozen=True)
class Cost:
    """What the front end took while all streams ran."""

    path: str
    num_streams: int
    tokens_per_s: float
    """Over all streams."""
    core_share: float
    us_per_token: float


class PacedModel(FakeExecutor):
    """Gives every row a token at each tick, and reads the clocks at the steps of all streams."""

    def __init__(self, num_streams: int, rate: float) -> None:
        super().__init__()
        self.readings: list[tuple[float, float]] = []
        """Seconds at the begin of each step in which all streams decode: of the clock, and of CPU time."""
        self._num_streams = num_streams
        self._period_s = 1 / rate
        self._tick_s = 0.0
        self._own_s = 0.0

    def execute(self, batch: Batch) -> StepOutput:
        """Wait for the tick, then return the foreseen tokens."""
        started_s = time.thread_time()
        if sum(row.is_decode for row in batch.rows) == self._num_streams:
            self.readings.append((time.perf_counter(), time.process_time() - self._own_s))
        self._tick_s = max(self._tick_s + self._period_s, time.perf_counter())
        time.sleep(max(self._tick_s - time.perf_counter(), 0.0))
        output = StepOutput(tuple(self.sample(batch.key, row) for row in batch.rows if row.sampling is not None))
        self._own_s += time.thread_time() - started_s
        return output

    def cost(self, path: str, num_steps: int) -> Cost:
        """Return what the counted steps took."""
        (start_s, start_cpu_s), (end_s, end_cpu_s) = self.readings[NUM_WARM_UP], self.readings[NUM_WARM_UP + num_steps]
        num_tokens = num_steps * self._num_streams
        wall_s, cpu_s = end_s - start_s, end_cpu_s - start_cpu_s
        return Cost(path, self._num_streams, num_tokens / wall_s, cpu_s / wall_s, 1e6 * cpu_s / num_tokens)


def measure(path: str, num_streams: int, rate: float, num_steps: int) -> Cost:
    """Serve `num_streams` streams of `path` from a process of clients until they end."""
    model = PacedModel(num_streams, rate)
    settings = fake_settings(num_adapters=0)
    blocks_per_stream = N_CTX // BLOCK_SIZE
    limits = SchedulerLimits(num_streams, num_streams * blocks_per_stream, N_CTX, num_streams * N_CTX, num_streams)

    def load(settings: Settings) -> Engine:
        return fake_engine(model, settings, limits)

    async def serve() -> None:
        service, listeners = Service(settings, load), listen(settings)
        serving = asyncio.create_task(service.run(listeners))
        port = listeners[0].getsockname()[1]
        clients = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.load.bench_front", "--clients", str(port), path, str(num_streams)
        )
        assert await clients.wait() == 0, "the clients failed"
        service.stopping.set()
        await serving

    with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.run(serve())
    return model.cost(path, num_steps)


class Reader(asyncio.Protocol):
    """A client that reads one answer, and only counts its frames."""

    def __init__(self, request: bytes) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._request = request
        self._num_frames = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count frames; none is cut in two, for each is sent by itself."""
        self._num_frames += data.count(b"data: ")

    def connection_lost(self, error: Exception | None) -> None:
        """The answer is complete."""
        self.ended.set_result(self._num_frames)


async def read_streams(port: int, path: str, num_streams: int) -> None:
    """Read so many answers at once. Raises ConnectionError where one of them has fewer frames than tokens."""
    num_tokens = N_CTX - 64
    body = json.dumps({**BODIES[path], "stream": True, "max_tokens": num_tokens, "temperature": 0}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    loop = asyncio.get_running_loop()
    readers = [
        (await loop.create_connection(lambda: Reader(head.encode() + body), "127.0.0.1", port))[1]
        for _ in range(num_streams)
    ]
    for reader in readers:
        if await reader.ended < num_tokens:
            raise ConnectionError("an answer is not complete")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the server without a model.")
    parser.add_argument("--steps", type=int, default=MAX_STEPS, metavar="N", help=f"that count, at most {MAX_STEPS}")
    parser.add_argument("--clients", nargs=3, metavar=("PORT", "PATH", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        port, path, num_streams = options.clients
        asyncio.run(read_streams(int(port), path, int(num_streams)))
        return
    print("| path | streams | tokens/s | of a core | µs a token |")
    print("|---|--:|--:|--:|--:|")
    costs = []
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone:
        for num_streams, rate in LOADS:
            for path in PATHS:
                cost = alone.submit(measure, path, num_streams, rate, min(options.steps, MAX_STEPS)).result()
                costs.append(cost)
                print(
                    f"| `{path}` | {num_streams} | {cost.tokens_per_s:,.0f} | {cost.core_share:.3f} "
                    f"| {cost.us_per_token:.1f} |",
                    flush=True,
                )
    worst = max(cost.core_share for cost in costs)
    print(json.dumps({"worst_core_share": worst, "costs": [asdict(cost) for cost in costs]}))


if __name__ == "__main__":
    main()
