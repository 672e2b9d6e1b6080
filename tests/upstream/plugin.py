"""A pytest plugin in place of llama.cpp's conftest.py, whose first fixture downloads every model there is.

It runs in the environment of those tests, beside their utils.py, and knows nothing of this project but which tests are
not applicable to it.
"""

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from not_applicable import SLOW, reason_of  # type: ignore[import-not-found]  # beside this file, on the path there

TIME_LIMIT_S = 180
"""For one test, from the start of its server to its end."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a port of its own, before the tests' modules read it."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    os.environ["PORT"] = str(int(os.environ["PORT"]) + int(worker.removeprefix("gw")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is not applicable, with the reason."""
    for item in items:
        reason = SLOW if item.get_closest_marker("slow") else reason_of(item.nodeid.removeprefix("unit/"))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _stop_servers() -> Iterator[None]:
    """Stop the servers of a test when it is over, and end a test that takes too long."""
    import utils  # type: ignore[import-not-found]  # theirs

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the test takes longer than {TIME_LIMIT_S} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TIME_LIMIT_S)
    yield
    signal.alarm(0)
    for server in list(utils.server_instances):
        server.stop()
