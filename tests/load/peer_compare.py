"""The order of the comparison: a probe for the peer's fastest quantisations, then rounds of A B A B. It must not know
how a workload is measured or printed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.load.peer_figures import Figures, fastest
from tests.load.peer_perplexity import NUM_WINDOWS, perplexity
from tests.load.peer_report import Comparison
from tests.load.peer_servers import Contender, Setup, Start, session
from tests.load.peer_workloads import Times, Workload, measure

PROBE_ROUND = -1
"""The probe's prompts are its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how long."""

    workloads: tuple[Workload, ...]
    rounds: int
    times: Times
    probe_times: Times
    threads: int
    log: Path
    """Where the output of the running server goes."""


@dataclass
class Result:
    """What was measured."""

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    """By workload."""
    starts: dict[tuple[str, str], list[Start]] = field(default_factory=lambda: defaultdict(list))
    """By setup and server."""


def compare(plan: Plan, ours: Contender, peers_of: Callable[[Setup], Sequence[Contender]]) -> Result:
    """Probe and measure. `peers_of` names the peer's variants for a setup."""
    result, chosen = Result(), {}
    groups = by_setup(plan.workloads)
    for setup, workloads in groups.items():
        peers = {peer.variant: peer for peer in peers_of(setup)}
        speeds = _probe(plan, setup, workloads, peers.values())
        for workload in workloads:
            best = fastest(speeds[workload.name])
            chosen[workload.name] = peers[best]
            result.comparisons[workload.name] = Comparison(
                workload.name, best, speeds[workload.name], workload.counts_prompts
            )
            print(f"probe {workload.name}: {best} of {_listed(speeds[workload.name])}", flush=True)
    for round_id in range(plan.rounds):
        for setup, workloads in groups.items():
            _run(plan, result, ours, setup, workloads, round_id)
            for peer in dict.fromkeys(chosen[workload.name] for workload in workloads):
                own = [workload for workload in workloads if chosen[workload.name] == peer]
                _run(plan, result, peer, setup, own, round_id)
    return result


def by_setup(workloads: Sequence[Workload]) -> dict[Setup, list[Workload]]:
    """Group the workloads that one start of a server can serve, in their order."""
    groups: dict[Setup, list[Workload]] = defaultdict(list)
    for workload in workloads:
        groups[workload.setup].append(workload)
    return dict(groups)


def _probe(
    plan: Plan, setup: Setup, workloads: Sequence[Workload], peers: Iterable[Contender]
) -> dict[str, dict[str, float]]:
    """Return the speed of each variant, by workload."""
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    for peer in peers:
        with session(peer, setup, plan.threads, plan.log) as running:
            for workload in workloads:
                figures = measure(running.port, workload.shortened(), PROBE_ROUND, plan.probe_times)
                speeds[workload.name][peer.variant] = speed_of(workload, figures)
    return speeds


def _run(
    plan: Plan, result: Result, contender: Contender, setup: Setup, workloads: Sequence[Workload], round_id: int
) -> None:
    """Start a server, run workloads on it, in the first round also their perplexities, and stop it."""
    is_ours = contender.name == "ours"
    known: dict[tuple[object, int], float] = {}
    with session(contender, setup, plan.threads, plan.log) as running:
        for workload in workloads:
            comparison = result.comparisons[workload.name]
            figures = measure(running.port, workload, round_id, plan.times)
            (comparison.ours if is_ours else comparison.peer).append(figures)
            speed = speed_of(workload, figures)
            print(f"round {round_id + 1}: {workload.name} {contender.name} {speed:.1f}/s", flush=True)
        for workload in workloads if round_id == 0 else ():
            lists = tuple(dict.fromkeys(workload.lists))
            num_rows = min(len(workload.lists), NUM_WINDOWS)
            if (lists, num_rows) not in known:
                known[lists, num_rows] = perplexity(running.port, lists, num_rows)
            comparison = result.comparisons[workload.name]
            if is_ours:
                comparison.our_perplexity = known[lists, num_rows]
            else:
                comparison.peer_perplexity = known[lists, num_rows]
    result.starts[setup.name, contender.name].append(running.start)


def speed_of(workload: Workload, figures: Figures) -> float:
    """Return the figure that the workload is about."""
    return figures.prompt_tokens_per_s if workload.counts_prompts else figures.tokens_per_s


def _listed(speeds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items())
