"""What is noted of a step when it is planned, for when it has been computed: whom its service counts for, and what is
told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.batch import Batch
from scheduler.cohort import CohortKey
from scheduler.events import StepDone
from scheduler.request import Request


@dataclass(frozen=True, slots=True)
class StepAccount:
    """The account of one step."""

    batch: Batch
    planned_s: float
    num_cohorts: int
    """Cohorts that were runnable when it was planned."""
    num_lists: int
    """Distinct adapter lists that its requests had then."""
    service: dict[CohortKey, tuple[int, int]]
    """Prompt tokens and samples by the list that was asked for, whatever they are computed under."""

    @classmethod
    def of(cls, batch: Batch, requests: Sequence[Request], num_cohorts: int, now: float) -> "StepAccount":
        """Note a step that is planned now; `requests` are those of its rows."""
        service: dict[CohortKey, tuple[int, int]] = {}
        for request, row in zip(requests, batch.rows, strict=True):
            num_prompt, num_sampled = service.get(request.key, (0, 0))
            num_prompt += 0 if row.is_decode else len(row.token_ids)
            service[request.key] = num_prompt, num_sampled + (row.sampling is not None)
        return cls(batch, now, num_cohorts, len({request.key_now for request in requests}), service)

    def done(self, previous_key: CohortKey | None, now: float) -> StepDone:
        """Tell that the step is over; `previous_key` is that of the step before it, None for the first."""
        batch = self.batch
        return StepDone(
            step_id=batch.step_id,
            key=batch.key,
            num_rows=len(batch.rows),
            num_decode=sum(row.is_decode for row in batch.rows),
            num_tokens=batch.num_tokens,
            num_cohorts=self.num_cohorts,
            num_lists=self.num_lists,
            is_switch=previous_key is not None and previous_key != batch.key,
            duration_s=now - self.planned_s,
            now=now,
        )
