"""A server that sleeps: an engine without a model in place of the one that nobody used for a while.

It knows all that can be told without computing: the model's card, the catalog, the settings, the metrics. A request
for anything else has the model loaded again first, so nothing here is ever asked to compute.
"""

from scheduler.batch import Batch, StepOutput
from scheduler.cohort import CohortKey
from scheduler.loop import StepLoop
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from server.assembly import assemble
from server.engine import Engine


class _NoModel:
    """Computes nothing, keeps no adapters: an Executor, and the ModelLists of a model that is not there."""

    def execute(self, batch: Batch) -> StepOutput:
        raise AssertionError(f"step {batch.step_id} of a model that sleeps")

    def estimate_bytes(self, entry: AdapterEntry) -> int:
        raise AssertionError(f"{entry.name} is asked of a model that sleeps")

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        raise AssertionError(f"{entry.name} is loaded for a model that sleeps, as {load_id}")

    async def drop(self, resident: ResidentAdapter) -> None:
        raise AssertionError(f"{resident.name} is in the memory of a model that sleeps")

    def is_prepared(self, key: CohortKey) -> bool:
        raise AssertionError(f"{key} is asked of a model that sleeps")

    async def prepare(self, key: CohortKey) -> None:
        raise AssertionError(f"{key} is prepared for a model that sleeps")


def dormant(engine: Engine) -> Engine:
    """Return an engine that tells what `engine` tells and computes nothing. It holds nothing of the model's."""
    nothing = _NoModel()

    def no_lists(_loop: StepLoop) -> _NoModel:
        return nothing

    asleep = assemble(
        engine.settings,
        engine.model,
        engine.tokenizer,
        engine.chat_template,
        engine.loop.scheduler.limits,
        nothing,
        engine.adapters.catalog,
        no_lists,
        {},
        engine,
    )
    asleep.is_dormant = True
    return asleep
