"""Start one contender as its own process, with the same seats and threads whoever it is, and stop it. It must not know
what is measured on it.

Environment variables that tune OpenMP or either server are taken away, so that each runs as it is shipped.
"""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.load.client import stream_completion
from tests.load.demo_server import ROOT

_TUNING = ("OMP_", "GOMP_", "KMP_", "MKL_", "GGML_", "LLAMA_ARG_", "COHORT_")
_READY_S = 300.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What both servers are started with."""

    name: str
    slots: int
    context: int
    """Tokens for each slot."""
    num_adapters: int = 0
    is_lean: bool = False
    """Whether ours is to keep no second copy of weights: for the memory that serving takes at least."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the two servers, with the files it runs."""

    name: str
    variant: str
    """The quantisation, in words."""
    program: tuple[str, ...]
    model: Path
    adapters: tuple[Path, ...]
    flags: tuple[str, ...] = ()
    lean_flags: tuple[str, ...] = ()

    def command(self, setup: Setup, threads: int, port: int) -> list[str]:
        """Return the command line; both servers spell these flags alike."""
        loras = [flag for path in self.adapters[: setup.num_adapters] for flag in ("--lora", str(path))]
        seats = ["-np", str(setup.slots), "-c", str(setup.slots * setup.context), "-t", str(threads)]
        lean = self.lean_flags if setup.is_lean else ()
        where = ["-m", str(self.model), "--host", "127.0.0.1", "--port", str(port)]
        return [*self.program, *where, *seats, *loras, *self.flags, *lean]


@dataclass
class Start:
    """How a start went. Seconds since the command; bytes."""

    ready_s: float
    first_token_s: float
    peak_rss_bytes: int = 0
    """Of the whole session; written when it ends. Pages of a mapped model file count."""


@dataclass(frozen=True, slots=True)
class Session:
    """A running server."""

    port: int
    start: Start


@contextmanager
def session(contender: Contender, setup: Setup, threads: int, log: Path) -> Iterator[Session]:
    """Start a contender, yield it once it has answered, stop it. Its output goes to `log`.

    Raises RuntimeError with the end of the output where it does not get ready.
    """
    port = _free_port()
    with log.open("wb") as output:
        started_s = time.perf_counter()
        command = contender.command(setup, threads, port)
        process = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=output, stderr=output)
        try:
            ready_s = _wait_until_ready(process, port, started_s, log)
            asyncio.run(stream_completion(port, _first_request(setup)))
            start = Start(ready_s, time.perf_counter() - started_s)
            yield Session(port, start)
            start.peak_rss_bytes = peak_rss_bytes(process.pid)
        finally:
            _stop(process)


def _first_request(setup: Setup) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": [100] * 8, "n_predict": 1, "cache_prompt": False}
    if setup.num_adapters:
        body["lora"] = [{"id": index, "scale": 0.0} for index in range(setup.num_adapters)]
    return body


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that a running process has had resident so far (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_TUNING)}
    return kept | {"PYTHONPATH": str(ROOT)}


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, started_s: float, log: Path) -> float:
    while process.poll() is None and time.perf_counter() < started_s + _READY_S:
        if _is_healthy(port):
            return time.perf_counter() - started_s
        time.sleep(0.01)
    tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
    raise RuntimeError(f"the server was not ready in {_READY_S} s; exit code {process.poll()}\n{tail}")


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python_server() -> tuple[str, ...]:
    """Return the program that is ours."""
    return (sys.executable, "-m", "server", "serve")
