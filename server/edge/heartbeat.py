"""When a stream has been silent for so long that it sends a comment: connections that carry nothing are closed on the
way."""

import asyncio
from collections.abc import Callable

COMMENT = b":\n\n"
"""What readers of server-sent events skip."""


class Heartbeat:
    """Calls `beat` whenever nothing was sent for `interval_s` seconds; never where that is 0 or less. Its one timer is
    not touched by what is sent meanwhile, which may be thousands of tokens."""

    def __init__(self, interval_s: float, beat: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if interval_s > 0:
            self._look()

    def sent(self) -> None:
        """Note that something is sent now."""
        self._last_s = self._loop.time()

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        silent_s = self._loop.time() - self._last_s
        if silent_s >= self._interval_s:
            silent_s = 0.0
            self.sent()
            self._beat()
        self._timer = self._loop.call_later(self._interval_s - silent_s, self._look)
