"""When a silent stream beats, in a time that passes only while nothing is to do."""

import asyncio
import selectors

import pytest

from server.edge.heartbeat import Heartbeat


class _Leaping(selectors.SelectSelector):
    """Waits for nothing: the time is over at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0.0
        return super().select(0)


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


@pytest.mark.parametrize(
    ("interval_s", "sent_at_s", "beats"),
    [
        (10, [], [10, 20, 30, 40]),
        (10, [5, 14, 18], [28, 38, 48]),
        (10, [10.5], [10, 20.5, 30.5, 40.5]),
        (0, [], []),
        (-1, [], []),
    ],
)
def test_it_beats_after_every_interval_of_silence(
    interval_s: float, sent_at_s: list[float], beats: list[float]
) -> None:
    heard: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(interval_s, lambda: heard.append(loop.time()))
        for moment_s in sent_at_s:
            await asyncio.sleep(moment_s - loop.time())
            heartbeat.sent()
        await asyncio.sleep(49 - loop.time())
        heartbeat.stop()
        await asyncio.sleep(100)

    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        runner.run(run())
    assert heard == pytest.approx(beats)
