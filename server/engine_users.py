"""Who uses an engine: it must last until the last HTTP request to which it was given is done."""

import asyncio
from types import TracebackType


class EngineUsers:
    """A count of requests. Each one enters and leaves it as a context manager."""

    def __init__(self) -> None:
        self.num = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self.num += 1
        self._none.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.num -= 1
        if self.num == 0:
            self._none.set()

    async def wait_for_none(self) -> None:
        """Return when there is nobody."""
        await self._none.wait()
