"""The flags of `cohort simulate`. What they mean together: `command.py`."""

import argparse
import math
from pathlib import Path

from scheduler.cost_model import PRESETS
from scheduler.fairness import DEFAULT_FAIRNESS
from scheduler.policy import POLICY_NAMES
from scheduler.scenarios import SCENARIOS
from scheduler.workload import Lengths, parse_lengths

ARRIVALS = ("poisson", "bursts", "clients")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. Flags that were not given are None: what they default to depends on others."""
    parser = argparse.ArgumentParser(
        prog="cohort simulate",
        description="Run the scheduler under a virtual clock: steps take what a cost model says, no time passes.",
        allow_abbrev=False,
    )
    _add_workload_flags(parser)
    _add_scheduler_flags(parser)
    _add_cost_flags(parser)
    run = parser.add_argument_group("the run")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of the workload (default 0)")
    run.add_argument("--duration", type=_above_zero, metavar="S", help="stop at this time of the virtual clock")
    run.add_argument("--requests", type=_positive, metavar="N", help="stop when so many requests are answered")
    out = parser.add_argument_group("what comes out")
    out.add_argument("--json", action="store_true", help="print JSON, with the numbers of every list")
    out.add_argument("--svg", type=Path, metavar="FILE", help="draw who ran when")
    out.add_argument("--svg-from", type=_number, metavar="S", help="draw from this time on (default 0)")
    out.add_argument("--svg-to", type=_number, metavar="S", help="draw to this time (default: the end)")
    out.add_argument("--compare", action="store_true", help="run every policy on every named workload; print a table")
    out.add_argument(
        "--rewrite", type=Path, metavar="FILE", help="with --compare: put the table between the marks in this page"
    )
    return parser


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    named = parser.add_argument_group("the workload: one of these")
    which = named.add_mutually_exclusive_group()
    which.add_argument("--workload", choices=tuple(SCENARIOS), help="a named one (default even)")
    which.add_argument(
        "--trace", type=Path, metavar="FILE", help="recorded: CSV, arrival_s,list,prompt_tokens,output_tokens"
    )
    which.add_argument("--arrivals", choices=ARRIVALS, help="one of your own, described by the flags below")
    own = parser.add_argument_group("a workload of your own")
    own.add_argument("--rate", type=_above_zero, metavar="X", help="requests a second (default 1)")
    own.add_argument("--on", type=_above_zero, metavar="S", help="mean length of a burst (default 5)")
    own.add_argument("--off", type=_above_zero, metavar="S", help="mean length of a silence (default 25)")
    own.add_argument("--clients", type=_positive, metavar="N", help="clients, one request each at a time (default 16)")
    own.add_argument(
        "--think", type=_number, metavar="S", help="from a client's answer to its next request (default 0)"
    )
    own.add_argument("--lists", type=_positive, metavar="N", help="adapter lists (default 4)")
    own.add_argument("--zipf", type=_number, metavar="X", help="list k has weight 1 / k^X (default 0: all alike)")
    own.add_argument("--prompt", type=_lengths, metavar="DIST", help="prompt tokens (default uniform:20:100)")
    own.add_argument(
        "--output",
        type=_lengths,
        metavar="DIST",
        help="generated tokens (default geometric:64); DIST is fixed:N, uniform:LEAST:MOST, geometric:MEAN or "
        "lognormal:MEDIAN:SIGMA",
    )


def _add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the scheduler")
    group.add_argument("--policy", choices=POLICY_NAMES, help="default fair")
    group.add_argument("-np", "--parallel", type=_positive, metavar="N", help="slots (default: the workload's, or 16)")
    group.add_argument(
        "-b", "--batch-size", type=_positive, default=256, metavar="N", help="most tokens of a step (default 256)"
    )
    group.add_argument(
        "--context", type=_positive, default=4096, metavar="N", help="most tokens of a request (default 4096)"
    )
    group.add_argument(
        "--kv-tokens",
        type=_positive,
        metavar="N",
        help="tokens that the KV cache holds (default: a context for each slot)",
    )
    group.add_argument("--max-waiting", type=_whole, metavar="N", help="requests that may wait (default: any number)")
    default = DEFAULT_FAIRNESS
    group.add_argument(
        "--max-wait",
        type=_number,
        metavar="S",
        help=f"of policy fair: longest wait of a list without a seat (default {default.max_wait_s:g})",
    )
    group.add_argument(
        "--fair-slack",
        type=_number,
        metavar="N",
        help=f"of policy fair: lead that large cohorts are worth (default {default.slack_tokens:g})",
    )
    group.add_argument(
        "--max-active-lists",
        type=_whole,
        metavar="N",
        help="of policy fair: lists with seats at a time (default 0: by the slots)",
    )


def _add_cost_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what a step costs")
    group.add_argument(
        "--cost", choices=tuple(PRESETS), default="cpu-2-core", help="a machine and model (default cpu-2-core)"
    )
    group.add_argument("--step-ms", type=_above_zero, metavar="X", help="instead of the preset's: each step")
    group.add_argument("--prefill-token-us", type=_number, metavar="X", help="… each token of a prompt")
    group.add_argument("--decode-row-us", type=_number, metavar="X", help="… each row that decodes")
    group.add_argument("--kv-token-us", type=_number, metavar="X", help="… each token of KV that a row reads")


def _whole(text: str) -> int:
    return _bounded(text, int(text), 0)


def _positive(text: str) -> int:
    return _bounded(text, int(text), 1)


def _bounded(text: str, number: int, least: int) -> int:
    if number < least:
        raise argparse.ArgumentTypeError(f"at least {least} is needed, but got {text}")
    return number


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"a number from 0 on is needed, but got {text}")
    return number


def _above_zero(text: str) -> float:
    number = _number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, but got {text}")
    return number


def _lengths(text: str) -> Lengths:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
