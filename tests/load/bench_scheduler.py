"""What the scheduler itself costs: `make bench-scheduler`. Prints a table; the last line is JSON.

usage: python -m tests.load.bench_scheduler [--steps N]

A step is one `plan` and one `commit`; no model computes anything. All slots are taken, and requests end and are
replaced all the time. With 10,000 waiting requests over 1,000 lists, every list is overdue under `fair`."""

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass

from scheduler.batch import BLOCK_SIZE, SamplingParams
from scheduler.cohort import AdapterId, cohort_key
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.cost_model import CPU_2_CORE
from scheduler.policy import POLICY_NAMES, PolicyName, make_policy
from scheduler.request import Request
from tests.scheduler.builders import answer

SHORTEST_STEP_S = 12.6e-3
"""One decode row of the demo model on two CPU cores, measured."""
MAX_CONTEXT = 4096
WAITING = (0, 100, 10_000)
SLOTS = (1, 4, 16, 64)


@dataclass
class Cost:
    """What steps cost, in microseconds."""

    policy: str
    num_slots: int
    num_waiting: int
    rows_per_step: float
    plan_us: float
    commit_us: float
    step_us: float
    """Medians, the last of the sum."""
    step_p99_us: float
    share: float
    share_p99: float
    """Of the time that the model needs for the same step, by the cost model `cpu-2-core`."""

    @property
    def share_of_shortest(self) -> float:
        """Median, of the shortest step that there is."""
        return self.step_us / 1e6 / SHORTEST_STEP_S


@dataclass
class Timing:
    """One step."""

    num_rows: int
    plan_s: float
    commit_s: float
    model_s: float


class Load:
    """A scheduler with as many requests as it should have, over up to 1,000 lists."""

    def __init__(self, policy: PolicyName, num_slots: int, num_waiting: int) -> None:
        limits = SchedulerLimits(num_slots, num_slots * MAX_CONTEXT // BLOCK_SIZE, MAX_CONTEXT, 512, num_waiting)
        self.scheduler = Scheduler(limits, make_policy(policy, num_slots))
        self.num_wanted = num_slots + num_waiting
        num_lists = min(1000, max(1, num_waiting))
        self.keys = [cohort_key([(AdapterId(number, str(number)), 1.0)]) for number in range(num_lists)]
        self.random = random.Random(0)
        self.num_offered = 0
        self.now = 0.0

    def refill(self) -> None:
        """Replace requests that have ended."""
        while self.scheduler.num_requests < self.num_wanted:
            prompt = tuple(self.random.randrange(10_000) for _ in range(self.random.randint(20, 100)))
            key, num_output = self.random.choice(self.keys), 1 + int(self.random.expovariate(1 / 64))
            self.scheduler.add(Request(self.num_offered, key, prompt, SamplingParams(), num_output), self.now)
            self.num_offered += 1

    def step(self) -> Timing:
        """Plan and commit once. The clock moves as far as the model would need."""
        self.refill()
        start_s = time.perf_counter()
        batch = self.scheduler.plan(self.now)
        planned_s = time.perf_counter()
        assert batch is not None
        output, model_s = answer(batch), CPU_2_CORE.duration_s(batch)
        self.now += model_s
        computed_s = time.perf_counter()
        self.scheduler.commit(output, self.now)
        committed_s = time.perf_counter()
        self.scheduler.take_events()
        return Timing(len(batch.rows), planned_s - start_s, committed_s - computed_s, model_s)


def measure(policy: PolicyName, num_slots: int, num_waiting: int, num_steps: int) -> Cost:
    """Run a load until it is in its stride, then time `num_steps` steps."""
    load = Load(policy, num_slots, num_waiting)
    for _ in range(300):
        load.step()
    steps = [load.step() for _ in range(num_steps)]
    sums = sorted(step.plan_s + step.commit_s for step in steps)
    shares = sorted((step.plan_s + step.commit_s) / step.model_s for step in steps)
    middle, p99 = num_steps // 2, int(0.99 * num_steps)
    return Cost(
        policy=policy,
        num_slots=num_slots,
        num_waiting=num_waiting,
        rows_per_step=statistics.mean(step.num_rows for step in steps),
        plan_us=statistics.median(step.plan_s for step in steps) * 1e6,
        commit_us=statistics.median(step.commit_s for step in steps) * 1e6,
        step_us=sums[middle] * 1e6,
        step_p99_us=sums[p99] * 1e6,
        share=shares[middle],
        share_p99=shares[p99],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the scheduler without a model.")
    parser.add_argument("--steps", type=int, default=5000, metavar="N", help="steps of each measurement")
    num_steps = parser.parse_args().steps
    print("| policy | slots | waiting | rows | plan | commit | both | p99 | of its step | p99 | of 12.6 ms |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    costs = []
    loads = [(16, num_waiting) for num_waiting in WAITING] + [(n, 10_000) for n in SLOTS if n != 16]
    for policy in POLICY_NAMES:
        for num_slots, num_waiting in loads:
            cost = measure(policy, num_slots, num_waiting, num_steps)
            costs.append(cost)
            print(
                f"| `{policy}` | {num_slots} | {num_waiting:,} | {cost.rows_per_step:.1f} | {cost.plan_us:.0f} µs "
                f"| {cost.commit_us:.0f} µs | {cost.step_us:.0f} µs | {cost.step_p99_us:.0f} µs "
                f"| {cost.share:.2%} | {cost.share_p99:.2%} | {cost.share_of_shortest:.2%} |",
                flush=True,
            )
    worst = max(cost.share_p99 for cost in costs if cost.num_slots == 16)
    print(json.dumps({"worst_p99_share_at_16_slots": worst, "costs": [asdict(cost) for cost in costs]}))


if __name__ == "__main__":
    main()
