"""The real scheduler under a virtual clock."""

import math

import pytest

from scheduler.batch import BLOCK_SIZE
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.cost_model import CostModel
from scheduler.policy import POLICY_NAMES, PolicyName, make_policy
from scheduler.report import Report
from scheduler.simulate import RETRY_AFTER_S, simulate
from scheduler.timeline import Timeline
from scheduler.workload import (
    Arrival,
    Clients,
    Fixed,
    Geometric,
    Poisson,
    Replay,
    Shape,
    Traffic,
    Uniform,
    Workload,
    one_list,
    zipf_lists,
)
from tests.scheduler.builders import make_limits

SECONDS = CostModel(step_s=1.0, prefill_token_s=0.0, decode_row_s=0.0, kv_token_s=0.0)
"""Every step takes one second, whatever it computes."""


def replay(*arrivals: Arrival) -> Workload:
    return Workload("replay", sources=(Replay(arrivals),))


def run(
    workload: Workload,
    *,
    limits: SchedulerLimits | None = None,
    policy: PolicyName = "fair",
    cost: CostModel = SECONDS,
    seed: int = 0,
    until_s: float = math.inf,
    max_requests: int | None = None,
    timeline: Timeline | None = None,
) -> Report:
    limits = limits or make_limits()
    scheduler = Scheduler(limits, make_policy(policy, limits.num_slots))
    traffic = Traffic(workload, seed, max_requests)
    return simulate(scheduler, traffic, cost, until_s=until_s, timeline=timeline)


def mixed(rate: float = 40.0) -> Workload:
    return Workload("mixed", sources=(Poisson(rate, Shape(zipf_lists(6, 1.0), Uniform(1, 40), Geometric(6))),))


def test_a_request_alone_takes_one_step_for_each_token() -> None:
    report = run(replay(Arrival(5.0, "a", 3, 4)))
    assert (report.num_steps, report.num_finished, report.num_sampled, report.num_prompt) == (4, 1, 4, 3)
    assert report.simulated_s == 9.0
    assert (report.ttft_s.p50, report.itl_s.max, report.itl_s.count) == (1.0, 1.0, 3)


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    report = run(replay(Arrival(0.0, "a", 3, 3), Arrival(1.25, "b", 3, 1)))
    # Its list is seated at 2 s and stands behind the other, whose turn ends at 3 s.
    assert [each.ttft_s.max for each in report.lists] == [1.0, 2.75]
    assert (report.longest_wait_s, report.longest_wait_list) == (0.75, "b")


def test_a_step_takes_what_the_cost_model_says_of_its_batch() -> None:
    cost = CostModel(step_s=1.0, prefill_token_s=0.1, decode_row_s=0.01, kv_token_s=0.001, tile=1)
    report = run(replay(Arrival(0.0, "a", 4, 2)), cost=cost)
    assert report.ttft_s.max == pytest.approx(1 + 4 * 0.1 + 0.001 * (1 + 2 + 3 + 4))
    assert report.itl_s.max == pytest.approx(1 + 0.01 + 0.001 * 5)


def test_requests_of_one_list_share_steps_and_others_take_turns() -> None:
    together = run(replay(Arrival(0.0, "a", 3, 4), Arrival(0.0, "a", 3, 4)))
    apart = run(replay(Arrival(0.0, "a", 3, 4), Arrival(0.0, "b", 3, 4)))
    assert (together.num_steps, together.rows_per_step, together.cohorts_per_step) == (4, 2.0, 1.0)
    assert (apart.num_steps, apart.rows_per_step) == (8, 1.0)


def test_the_list_called_base_and_others_are_different_lists() -> None:
    report = run(replay(Arrival(0.0, "base", 3, 2), Arrival(0.0, "a", 3, 2)))
    assert [each.name for each in report.lists] == ["base", "a"]
    assert report.num_steps == 4


def test_prompts_have_no_prefix_in_common() -> None:
    report = run(replay(*(Arrival(float(10 * i), "a", 2 * BLOCK_SIZE, 1) for i in range(3))))
    assert report.num_prompt == 3 * 2 * BLOCK_SIZE


def test_closed_loop_clients_send_one_request_at_a_time() -> None:
    clients = Clients(2, Shape(one_list("a"), Fixed(3), Fixed(4)), think_s=2.0)
    report = run(Workload("clients", clients=(clients,)), until_s=60.0)
    assert (report.num_requests, report.num_finished) == (20, 20)


def test_a_client_that_is_refused_tries_again_later() -> None:
    clients = Clients(3, Shape(one_list("a"), Fixed(3), Fixed(4)))
    limits = make_limits(num_slots=1, max_waiting=1)
    report = run(Workload("clients", clients=(clients,)), limits=limits, until_s=2.5)
    assert RETRY_AFTER_S == 1.0
    assert (report.num_requests, report.num_refused) == (5, 3)


def test_a_prompt_that_does_not_fit_is_refused_and_the_others_run() -> None:
    report = run(replay(Arrival(0.0, "a", 1000, 1), Arrival(0.0, "a", 3, 1)))
    assert (report.num_requests, report.num_refused, report.num_finished) == (2, 1, 1)


def test_the_clock_stops_where_it_is_told_to() -> None:
    report = run(replay(Arrival(0.0, "a", 3, 100), Arrival(10.0, "a", 3, 1), Arrival(11.0, "a", 3, 1)), until_s=10.5)
    assert (report.simulated_s, report.num_steps, report.num_sampled) == (10.5, 10, 10)
    assert (report.num_requests, report.num_finished) == (2, 0)
    assert report.ttft_s.max == 1.0
    assert report.ttft_s.count == 2


def test_the_clock_stops_between_requests_too() -> None:
    report = run(replay(Arrival(0.0, "a", 3, 1), Arrival(50.0, "a", 3, 1)), until_s=20.0)
    assert (report.simulated_s, report.num_requests) == (20.0, 1)


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second, other = (run(mixed(), seed=seed, max_requests=300) for seed in (1, 1, 2))
    assert first == second
    assert first.trace_hash != other.trace_hash


def test_the_trace_hash_covers_lists_and_rows() -> None:
    base = [Arrival(0.0, "a", 3, 2), Arrival(0.0, "b", 3, 2)]
    variants = [
        base,
        [Arrival(0.0, "a", 3, 2), Arrival(0.0, "c", 3, 2)],
        [Arrival(0.0, "a", 3, 2), Arrival(0.0, "b", 4, 2)],
        [Arrival(0.0, "a", 3, 2), Arrival(0.0, "b", 3, 3)],
        [Arrival(0.0, "b", 3, 2), Arrival(0.0, "a", 3, 2)],
    ]
    assert len({run(replay(*arrivals)).trace_hash for arrivals in variants}) == len(variants)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_request_is_answered_in_full_under_kv_pressure(policy: PolicyName) -> None:
    limits = make_limits(num_slots=8, num_blocks=12, max_context=128, max_waiting=10_000)
    workload = Workload("long", sources=(Poisson(40.0, Shape(zipf_lists(6, 1.0), Uniform(1, 40), Fixed(40))),))
    report = run(workload, limits=limits, policy=policy, max_requests=100, cost=CostModel(0.01, 0, 0, 0))
    assert (report.num_finished, report.num_refused, report.num_sampled) == (100, 0, 4000)
    assert report.num_preemptions > 0
    assert report.ttft_s.count == 100


def test_pauses_are_seen_where_a_list_waits_longer_than_it_may() -> None:
    hog = Clients(8, Shape(one_list("hog"), Fixed(3), Fixed(2000)))
    visitor = Replay((Arrival(5.0, "visitor", 3, 3),))
    workload = Workload("hog", sources=(visitor,), clients=(hog,))
    quick = CostModel(0.01, 0, 0, 0)
    limits = make_limits(num_blocks=1024, max_context=2048, max_waiting=100)
    fair, fcfs = (run(workload, policy=policy, cost=quick, limits=limits, until_s=15.0) for policy in POLICY_NAMES[:2])
    waits = [next(each.longest_wait_s for each in report.lists if each.name == "visitor") for report in (fair, fcfs)]
    assert waits[0] < 1.1 < waits[1]
    assert fair.num_pauses >= 1
    assert fcfs.num_pauses == 0


def test_a_timeline_sees_every_step() -> None:
    timeline = Timeline()
    report = run(mixed(), max_requests=100, timeline=timeline)
    assert sum(lane.ran.total_s for lane in timeline.lanes) == pytest.approx(report.num_steps)
    for lane in timeline.lanes:
        assert lane.ran.total_s <= lane.seated.total_s + 1e-9
        assert lane.seatless.longest_s == pytest.approx(
            next(each.longest_wait_s for each in report.lists if each.name == lane.name)
        )
