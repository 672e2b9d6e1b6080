"""From settings to a running server and back: what is built, in which order, and how it ends.

Startup: listen, load on a thread while every path answers 503, step. Shutdown, on SIGTERM or SIGINT: refuse new
requests, let the accepted ones finish within the grace, end the rest with an error, close the connections. A second
signal ends the process at once. What happens between, when another model is loaded, is model_swap.py's business.
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
from server.edge.door import Door
from server.engine import Engine
from server.model_swap import LOAD_ERRORS, ServedModels
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

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings], Engine] = load_engine,
        load_next: Callable[[Settings, Engine], Engine] = load_engine,
    ) -> None:
        """`load_next` loads the engine that follows another. Raises OSError where the file of API keys cannot be
        read.
        """
        self.settings = settings
        self.door = Door(api_keys=read_api_keys(settings), cors_origins=settings.cors_origins)
        self.models = ServedModels(self.door, load_next)
        self.stopping = asyncio.Event()
        self._load = load
        config = uvicorn.Config(
            create_app(self.door, self.models),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            headers=[("Server", "cohort")],
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._web = _WebServer(config)

    async def run(self, listeners: list[socket.socket]) -> int:
        """Serve on `listeners` until `stopping` is set or something fails; return the exit code."""
        serving = asyncio.create_task(self._web.serve(listeners), name="http")
        try:
            self.models.serve(await asyncio.to_thread(self._load, self.settings))
        except LOAD_ERRORS as error:
            log.error("cannot start: %s", str(error) or type(error).__name__)
            log.debug("where it failed:", exc_info=error)
            return 1
        else:
            return await self._until_stopped()
        finally:
            self._web.should_exit = True
            await serving

    async def _until_stopped(self) -> int:
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        failure = asyncio.create_task(self.models.has_failed.wait(), name="failure")
        await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
        self.door.is_closing = True
        grace_s = self.settings.shutdown_grace if stop.done() else 0
        log.info("shutting down: running requests have %g s", grace_s)
        for task in (stop, failure):
            task.cancel()
        await self.models.drain(grace_s)
        return 0


def read_api_keys(settings: Settings) -> frozenset[str]:
    """Return the API keys of the settings and of the file that they name. Raises OSError."""
    keys = settings.api_key.split(",")
    if settings.api_key_file is not None:
        keys += Path(settings.api_key_file).read_text(encoding="utf-8").splitlines()
    return frozenset(key.strip() for key in keys if key.strip())


def listen(settings: Settings) -> list[socket.socket]:
    """Return the sockets that listen where the settings say, one for each address. Raises OSError."""
    with contextlib.ExitStack() as unwanted:
        listeners = [unwanted.enter_context(_listen(host.strip(), settings.port)) for host in settings.host.split(",")]
        unwanted.pop_all()
    return listeners


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    # Connections inherit it. asyncio does not set it on sockets made like this, and a token would wait for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(settings: Settings, load: Callable[[Settings], Engine] = load_engine) -> int:
    """Run a server until a signal ends it; return the exit code."""
    level = "DEBUG" if settings.verbose else settings.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def run() -> int:
        service = Service(settings, load)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _on_signal, service)
        listeners = listen(settings)
        for listener in listeners:
            log.info("listening on %s, loading %s", _url_of(listener), settings.model)
        code = await service.run(listeners)
        if service.models.is_loading:
            _exit_at_once(code)
        return code

    try:
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            return runner.run(run())
    except OSError as error:
        log.error("cannot start: %s", error)
        return 1


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _on_signal(service: Service) -> None:
    if service.stopping.is_set() or service.door.engine is None:
        _exit_at_once(0)
    service.stopping.set()


def _exit_at_once(code: int) -> None:
    """End the process. Neither a step nor the loading of a model can be interrupted in an orderly way, and nobody waits
    for the latter."""
    logging.shutdown()
    os._exit(code)
