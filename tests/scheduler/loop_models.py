"""Executors for tests of the loop: one that keeps a record, one that stops at a gate, one that fails."""

import asyncio
import threading

from scheduler.batch import Batch, StepOutput
from scheduler.cohort import CohortKey
from tests.scheduler.fake_model import FakeModel


class ObservedModel:
    """The fake model, and a record of how it was called."""

    def __init__(self) -> None:
        self.model = FakeModel()
        self.keys: list[CohortKey] = []
        self.threads: set[int] = set()

    def execute(self, batch: Batch) -> StepOutput:
        self.keys.append(batch.key)
        self.threads.add(threading.get_ident())
        return self.model.execute(batch)


class GatedModel(ObservedModel):
    """Each step stops before it computes, until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self._events = asyncio.get_running_loop()
        self._started = asyncio.Semaphore(0)
        self._gate = threading.Semaphore(0)

    def execute(self, batch: Batch) -> StepOutput:
        self._events.call_soon_threadsafe(self._started.release)
        self._gate.acquire()
        return super().execute(batch)

    async def wait_for_step(self) -> None:
        """Return when the next step stands before the gate."""
        await self._started.acquire()

    def let_go(self, num_steps: int = 1) -> None:
        self._gate.release(num_steps)

    def open(self) -> None:
        """Stop no more steps."""
        self.let_go(10_000)


class FailingModel(ObservedModel):
    """Fails every step of one list."""

    def __init__(self, key: CohortKey) -> None:
        super().__init__()
        self._key = key

    def execute(self, batch: Batch) -> StepOutput:
        if batch.key == self._key:
            raise RuntimeError("adapter is broken")
        return super().execute(batch)
