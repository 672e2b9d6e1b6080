"""From settings to a running server and back: what is built, in which order, and how it ends.

Startup: listen, load on a thread while every path answers 503, step. Shutdown, on SIGTERM or SIGINT: refuse new
requests, let the accepted ones finish within the grace, end the rest with an error, close the connections. A second
signal ends the process at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from server.app import create_app
from server.assembly import load_engine
from server.door import Door
from server.engine import Engine
from server.settings import Settings

log = logging.getLogger("cohort")

_CLOSE_S = 5
"""How long clients may take to read the ends of their answers."""
_KEEP_ALIVE_S = 75
"""Longer than the pauses of load tools, which would otherwise meet a connection that closes under their request."""


class _WebServer(uvicorn.Server):
    """Uvicorn, with signals left to `serve`: it would stop listening before the running requests are done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """One server: its door, its HTTP side, and how to load its engine."""

    def __init__(self, settings: Settings, load: Callable[[Settings], Engine] = load_engine) -> None:
        """Raises OSError where the file of API keys cannot be read."""
        self.settings = settings
        self.door = Door(api_keys=read_api_keys(settings))
        self.stopping = asyncio.Event()
        self._load = load
        config = uvicorn.Config(
            create_app(self.door),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            headers=[("Server", "cohort")],
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._web = _WebServer(config)

    async def run(self, listener: socket.socket) -> int:
        """Serve on `listener` until `stopping` is set or something fails; return the exit code."""
        serving = asyncio.create_task(self._web.serve([listener]), name="http")
        try:
            engine = await asyncio.to_thread(self._load, self.settings)
        except (ValueError, OSError, MemoryError, RuntimeError) as error:  # torch's own errors are RuntimeErrors
            log.error("cannot start: %s", str(error) or type(error).__name__)
            log.debug("where it failed:", exc_info=error)
            return 1
        else:
            return await self._run_engine(engine)
        finally:
            self._web.should_exit = True
            await serving

    async def _run_engine(self, engine: Engine) -> int:
        stepping = asyncio.create_task(engine.loop.run(), name="steps")
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        self.door.engine = engine
        log.info("ready: %s", describe(engine))
        try:
            await asyncio.wait((stepping, stop), return_when=asyncio.FIRST_COMPLETED)
            self.door.is_closing = True
            if stepping.done():
                # Only a bug of ours ends it early; the error is raised below.
                return 1
            log.info("shutting down: running requests have %g s", self.settings.shutdown_grace)
            await engine.loop.drain(self.settings.shutdown_grace)
            return 0
        finally:
            stop.cancel()
            await stepping


def describe(engine: Engine) -> str:
    """Return one line about what is served."""
    limits = engine.loop.scheduler.limits
    return (
        f"{engine.model.name} with {len(engine.adapters.adapters)} adapters, {limits.num_slots} slots, "
        f"{limits.max_context} tokens of context, {limits.num_blocks} KV blocks"
    )


def read_api_keys(settings: Settings) -> frozenset[str]:
    """Return the API keys of the settings and of the file that they name. Raises OSError."""
    keys = settings.api_key.split(",")
    if settings.api_key_file is not None:
        keys += Path(settings.api_key_file).read_text(encoding="utf-8").splitlines()
    return frozenset(key.strip() for key in keys if key.strip())


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens where the settings say. Raises OSError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    # Connections inherit it. asyncio does not set it on sockets made like this, and a token would wait for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(settings: Settings, load: Callable[[Settings], Engine] = load_engine) -> int:
    """Run a server until a signal ends it; return the exit code."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def run() -> int:
        service = Service(settings, load)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _on_signal, service)
        listener = listen(settings)
        host, port = listener.getsockname()[:2]
        log.info("listening on http://%s:%d, loading %s", f"[{host}]" if ":" in host else host, port, settings.model)
        return await service.run(listener)

    try:
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            return runner.run(run())
    except OSError as error:
        log.error("cannot start: %s", error)
        return 1


def _on_signal(service: Service) -> None:
    if service.stopping.is_set() or service.door.engine is None:
        # Neither a step nor the loading of a model can be interrupted in an orderly way; nobody waits for the latter.
        logging.shutdown()
        os._exit(0)
    service.stopping.set()
