"""The real scheduler under a virtual clock: requests arrive as a workload says, and steps take as long as a cost model
says. No model, no waiting, no randomness beyond the workload's.

It is `loop.py` with the clock and the model replaced: `add` when a request arrives, during a step too; `plan`, then
`commit` when the step would be done. The tokens are placeholders: generation ends at the length that the workload
asks for."""

import hashlib
import math

from scheduler.batch import Batch, Sample, SamplingParams, StepOutput
from scheduler.cohort import BASE, AdapterId, CohortKey, cohort_key
from scheduler.core import Scheduler
from scheduler.cost_model import CostModel
from scheduler.errors import Refusal
from scheduler.events import Event, Finished
from scheduler.meter import Meter
from scheduler.report import Report, make_report
from scheduler.request import Request
from scheduler.timeline import Timeline
from scheduler.workload import Arrival, Traffic

BASE_LIST = "base"
"""The list name that stands for the base model without adapters."""
RETRY_AFTER_S = 1.0
"""How long a closed-loop client that was refused waits before its next request."""

_SAMPLING = SamplingParams()


class Simulation:
    """One run. `scheduler` is a new one and belongs to the simulation."""

    def __init__(
        self, scheduler: Scheduler, traffic: Traffic, cost: CostModel, timeline: Timeline | None = None
    ) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self._traffic = traffic
        self._cost = cost
        self._timeline = timeline
        self._meter = Meter() if timeline is None else Meter(timeline.stood)
        self._keys: dict[str, CohortKey] = {}
        self._clients: dict[int, int] = {}
        """Request → the closed-loop client that waits for its answer."""
        self._num_requests = 0
        self._hash = hashlib.sha256()

    def run(self, until_s: float = math.inf) -> Report:
        """Simulate until `until_s`, or until every request is answered and none is to come, and return the numbers.

        A step that would end later is not counted. Call it once.
        """
        while self.now < until_s:
            self._take_arrivals(self.now)
            batch = self.scheduler.plan(self.now)
            self._saw(self.scheduler.take_events())
            if batch is None:
                assert not self.scheduler.num_requests, "requests wait, and no step is possible"
                if self._traffic.next_s == math.inf:
                    break
                self.now = min(self._traffic.next_s, until_s)
                continue
            end_s = self.now + self._cost.duration_s(batch)
            if end_s > until_s:
                self._take_arrivals(until_s)
                self.now = until_s
            else:
                self._step(batch, end_s)
        self._meter.close(self.now)
        return make_report(self._meter, self.now, self._hash.hexdigest())

    def _step(self, batch: Batch, end_s: float) -> None:
        adapter_list = self._meter.lists[batch.key]
        if self._timeline is not None:
            self._timeline.ran(adapter_list, self.now, end_s)
        self._note(adapter_list.name, batch)
        self._take_arrivals(end_s)
        self.now = end_s
        samples = tuple(Sample(row.request_id, row.end) for row in batch.rows if row.sampling is not None)
        self.scheduler.commit(StepOutput(samples), end_s)
        self._saw(self.scheduler.take_events())

    def _note(self, name: str, batch: Batch) -> None:
        """Add a batch to the trace hash: its list, and for each row the request, the first position and the tokens."""
        rows = ";".join([f"{row.request_id},{row.start},{len(row.token_ids)}" for row in batch.rows])
        self._hash.update(f"{name}:{rows}\n".encode())

    def _take_arrivals(self, until_s: float) -> None:
        while self._traffic.next_s <= until_s:
            self._add(self._traffic.take())

    def _add(self, arrival: Arrival) -> None:
        request_id = self._num_requests
        self._num_requests += 1
        request = Request(
            request_id=request_id,
            key=self._key_of(arrival.list_name),
            # Nothing in common with other prompts: the prefix cache gives no hits but after a preemption.
            prompt=(request_id,) * arrival.prompt_tokens,
            sampling=_SAMPLING,
            max_new_tokens=arrival.output_tokens,
        )
        adapter_list = self._meter.list_of(request.key, arrival.list_name)
        try:
            self.scheduler.add(request, arrival.arrival_s)
        except Refusal:
            self._meter.refused(adapter_list)
            if arrival.client is not None:
                self._traffic.answered(arrival.client, arrival.arrival_s, pause_s=RETRY_AFTER_S)
            return
        self._meter.accepted(request_id, adapter_list, arrival.arrival_s)
        if arrival.client is not None:
            self._clients[request_id] = arrival.client

    def _key_of(self, name: str) -> CohortKey:
        key = self._keys.get(name)
        if key is None:
            adapter = AdapterId(len(self._keys) + 1, name)
            key = self._keys[name] = BASE if name == BASE_LIST else cohort_key([(adapter, 1.0)])
        return key

    def _saw(self, events: list[Event]) -> None:
        self._meter.saw(events)
        if not self._clients:
            return
        for event in events:
            if isinstance(event, Finished):
                client = self._clients.pop(event.request_id, None)
                if client is not None:
                    self._traffic.answered(client, event.now)


def simulate(
    scheduler: Scheduler,
    traffic: Traffic,
    cost: CostModel,
    *,
    until_s: float = math.inf,
    timeline: Timeline | None = None,
) -> Report:
    """Run a new scheduler under a virtual clock, and return what came of it; `timeline` records who ran when."""
    return Simulation(scheduler, traffic, cost, timeline).run(until_s)
