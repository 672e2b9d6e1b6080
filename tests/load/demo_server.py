"""A server as its own process on a free port; the demo server is what a newcomer starts."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from docs.demo.model_path import demo_model_path
from tests.load.client import HttpError, get_text

ROOT = Path(__file__).parents[2]
ADAPTERS = ("pirate", "emoji")


@contextmanager
def demo_server(*flags: str, start_s: float = 180.0) -> Iterator[int]:
    """Start the demo server with its two adapters and more `flags`; yield its port; stop it with SIGTERM."""
    process, port = start_demo_server(flags, start_s)
    try:
        yield port
    finally:
        stop(process)


def start_demo_server(flags: Sequence[str], start_s: float = 180.0) -> tuple[subprocess.Popen[bytes], int]:
    """Start the demo server and return it with its port, once it is ready. Raises RuntimeError where it is not in
    time."""
    loras = [flag for name in ADAPTERS for flag in ("--lora", f"docs/demo/{name}")]
    return start_server(demo_model_path(), [*loras, "--lora-init-without-apply", *flags], start_s)


def start_server(
    model: Path, flags: Sequence[str], start_s: float = 180.0, variables: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server, with more environment `variables`, and return it with its port, once it is ready. Raises
    RuntimeError where it is not in time."""
    port = _free_port()
    command = [sys.executable, "-m", "server", "serve", "-m", str(model), "--port", str(port), *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    deadline_s = time.monotonic() + start_s
    while time.monotonic() < deadline_s and process.poll() is None:
        if asyncio.run(_is_ready(port)):
            return process, port
    process.kill()
    raise RuntimeError(f"the server was not ready in {start_s} s; exit code {process.wait()}")


def stop(process: subprocess.Popen[bytes]) -> int:
    """Stop a server with SIGTERM; return its exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


async def _is_ready(port: int) -> bool:
    try:
        await get_text(port, "/health")
    except (OSError, HttpError, IndexError):
        await asyncio.sleep(0.1)
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
