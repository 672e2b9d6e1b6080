"""Who uses an engine: it must last until the last HTTP request to which it was given is done."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType


class EngineUsers:
    """A count of requests. Each one enters and leaves it as a context manager."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num = 0
        self._clock = clock
        self._left_s = clock()
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self.num += 1
        self._none.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.num -= 1
        self._left_s = self._clock()
        if self.num == 0:
            self._none.set()

    async def wait_for_none(self) -> None:
        """Return when there is nobody."""
        await self._none.wait()

    async def wait_for_none_since(self, idle_s: float) -> None:
        """Return when there has been nobody for so long, counted from the beginning where there never was."""
        while True:
            await self._none.wait()
            left_s = self._left_s + idle_s - self._clock()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)
