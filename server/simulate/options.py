"""What the flags of `cohort simulate` ask for: a list of simulations, and what to do with their numbers.

A flag that would change nothing (`--clients` of a Poisson workload) is refused, not ignored."""

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from scheduler.batch import BLOCK_SIZE
from scheduler.core import SchedulerLimits
from scheduler.cost_model import PRESETS, CostModel
from scheduler.fairness import DEFAULT_FAIRNESS, FairnessSettings
from scheduler.policy import POLICY_NAMES, PolicyName
from scheduler.scenarios import SCENARIOS, Scenario
from scheduler.trace_file import load_trace
from scheduler.workload import (
    Bursts,
    Clients,
    Geometric,
    Poisson,
    Replay,
    Shape,
    Uniform,
    Workload,
    zipf_lists,
)

_ONLY_FOR = {
    "rate": ("poisson", "bursts"),
    "on": ("bursts",),
    "off": ("bursts",),
    "clients": ("clients",),
    "think": ("clients",),
    "lists": ("poisson", "bursts", "clients"),
    "zipf": ("poisson", "bursts", "clients"),
    "prompt": ("poisson", "bursts", "clients"),
    "output": ("poisson", "bursts", "clients"),
}
"""The kinds of `--arrivals` that a flag belongs to."""
_NOT_COMPARED = ("workload", "trace", "arrivals", "policy", "requests", "svg", "svg_from", "svg_to")
"""What says nothing about a comparison, which runs everything."""
_UNLIMITED = 10**9


T = TypeVar("T")


class OptionError(ValueError):
    """Flags that contradict each other. The message names them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    scenario: Scenario
    policy: PolicyName
    limits: SchedulerLimits
    until_s: float
    max_requests: int | None


@dataclass(frozen=True, slots=True)
class Picture:
    """Where to draw, and what part of the time."""

    path: Path
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    runs: tuple[Run, ...]
    cost: CostModel
    cost_name: str
    fairness: FairnessSettings
    seed: int
    as_json: bool
    compares: bool
    page: Path | None
    picture: Picture | None


def read_options(flags: argparse.Namespace) -> Options:
    """Return what the flags of `flags.py` ask for.

    Raises OptionError where they contradict each other, TraceError or OSError where the trace cannot be read.
    """
    _check(flags)
    if flags.compare:
        runs = tuple(_run(flags, make(), policy) for make in SCENARIOS.values() for policy in POLICY_NAMES)
    else:
        runs = (_run(flags, _scenario(flags), flags.policy or "fair"),)
    return Options(
        runs=runs,
        cost=_cost(flags),
        cost_name=flags.cost,
        fairness=_fairness(flags),
        seed=flags.seed,
        as_json=flags.json,
        compares=flags.compare,
        page=flags.rewrite,
        picture=_picture(flags),
    )


def _check(flags: argparse.Namespace) -> None:
    for name, kinds in _ONLY_FOR.items():
        if getattr(flags, name) is not None and flags.arrivals not in kinds:
            raise OptionError(f"--{name} describes a workload of --arrivals {' or '.join(kinds)}")
    if flags.compare:
        for name in _NOT_COMPARED:
            if getattr(flags, name) is not None:
                raise OptionError(f"--{name.replace('_', '-')} and --compare exclude each other")
    elif flags.rewrite is not None:
        raise OptionError("--rewrite writes the table of --compare")
    elif flags.policy not in (None, "fair"):
        for name in ("max_wait", "fair_slack", "max_active_lists"):
            if getattr(flags, name) is not None:
                raise OptionError(f"--{name.replace('_', '-')} is a setting of --policy fair")


def _scenario(flags: argparse.Namespace) -> Scenario:
    if flags.trace is not None:
        workload = Workload(flags.trace.name, sources=(Replay(load_trace(flags.trace)),))
        return Scenario(workload, duration_s=math.inf)
    if flags.arrivals is not None:
        return Scenario(_own_workload(flags))
    return SCENARIOS[flags.workload or "even"]()


def _own_workload(flags: argparse.Namespace) -> Workload:
    lists = zipf_lists(_or(flags.lists, 4), _or(flags.zipf, 0.0))
    shape = Shape(lists, flags.prompt or Uniform(20, 100), flags.output or Geometric(64))
    rate = _or(flags.rate, 1.0)
    match flags.arrivals:
        case "poisson":
            return Workload("poisson", sources=(Poisson(rate, shape),))
        case "bursts":
            return Workload("bursts", sources=(Bursts(rate, _or(flags.on, 5.0), _or(flags.off, 25.0), shape),))
        case _:
            return Workload("clients", clients=(Clients(_or(flags.clients, 16), shape, _or(flags.think, 0.0)),))


def _run(flags: argparse.Namespace, scenario: Scenario, policy: PolicyName) -> Run:
    num_slots = _or(flags.parallel, scenario.num_slots)
    kv_tokens = _or(flags.kv_tokens, num_slots * flags.context)
    try:
        limits = SchedulerLimits(
            num_slots=num_slots,
            num_blocks=kv_tokens // BLOCK_SIZE,
            max_context=flags.context,
            max_step_tokens=flags.batch_size,
            max_waiting=_or(flags.max_waiting, _UNLIMITED),
        )
    except ValueError as error:
        raise OptionError(str(error)) from error
    until_s = math.inf if flags.requests is not None else scenario.duration_s
    max_requests = scenario.num_requests if flags.requests is None else flags.requests
    return Run(scenario, policy, limits, _or(flags.duration, until_s), max_requests)


def _cost(flags: argparse.Namespace) -> CostModel:
    preset = PRESETS[flags.cost]
    return replace(
        preset,
        step_s=_scaled(flags.step_ms, 1e-3, preset.step_s),
        prefill_token_s=_scaled(flags.prefill_token_us, 1e-6, preset.prefill_token_s),
        decode_row_s=_scaled(flags.decode_row_us, 1e-6, preset.decode_row_s),
        kv_token_s=_scaled(flags.kv_token_us, 1e-6, preset.kv_token_s),
    )


def _fairness(flags: argparse.Namespace) -> FairnessSettings:
    return FairnessSettings(
        max_wait_s=_or(flags.max_wait, DEFAULT_FAIRNESS.max_wait_s),
        slack_tokens=_or(flags.fair_slack, DEFAULT_FAIRNESS.slack_tokens),
        max_active_lists=_or(flags.max_active_lists, DEFAULT_FAIRNESS.max_active_lists),
    )


def _picture(flags: argparse.Namespace) -> Picture | None:
    start_s, end_s = _or(flags.svg_from, 0.0), _or(flags.svg_to, math.inf)
    if flags.svg is None:
        if flags.svg_from is not None or flags.svg_to is not None:
            raise OptionError("--svg-from and --svg-to say what --svg draws, which was not given")
        return None
    if start_s >= end_s:
        raise OptionError(f"--svg-from {start_s:g} does not lie before --svg-to {end_s:g}")
    return Picture(flags.svg, start_s, end_s)


def _or(given: T | None, default: T) -> T:
    return default if given is None else given


def _scaled(given: float | None, unit: float, default: float) -> float:
    return default if given is None else given * unit
