"""Ours against llama-server on this machine, in turn: `make bench-peer`. Prints a table; the last line is JSON.

usage: python -m tests.load.bench_peer [--quick] [--workloads base-16,four-lists-16] [--rounds N] [--seconds S] …

A round is A B A B: for each setup of seats and adapters, ours runs its workloads, is stopped, and the peer runs them.
The peer runs each workload with the quantisation of the same weights that was fastest for it in a short probe. What is
measured and how to read it: docs/performance.md.
"""

import argparse
import gc
import platform
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from docs.demo.model_path import demo_model_path
from server.capacity import num_physical_cores
from tests.load.demo_server import ROOT
from tests.load.peer import QUANTISATIONS, Peer, find_peer, quantise
from tests.load.peer_adapters import FILE_TYPES, AdapterFiles, make_adapter
from tests.load.peer_compare import Plan, Result, compare
from tests.load.peer_report import HEAD, adapter_overhead, comparison_lines, json_line, overhead_lines, start_lines
from tests.load.peer_servers import Contender, Setup, python_server
from tests.load.peer_workloads import WORKLOADS, Times, choose

Options = dict[str, str | int | float]


def main() -> None:
    """Measure and print."""
    options = _options()
    began_s = time.perf_counter()
    peer = find_peer(options.folder)
    model: Path = options.model or demo_model_path()
    names, kinds = (QUANTISATIONS[:1], FILE_TYPES[:1]) if options.quick else (QUANTISATIONS, FILE_TYPES)
    quantisations = quantise(peer, model, options.folder / "models", names)
    with tempfile.TemporaryDirectory() as scratch:
        adapters = [make_adapter(model, Path(scratch), seed) for seed in (0, 1)]
        gc.freeze()  # what was imported for the adapters is not to be looked through while clients run
        plan = _plan(options, Path(scratch) / "server.log")
        ours = _ours(model, adapters, shlex.split(options.ours_flags))
        result = compare(plan, ours, _peers(peer, quantisations, adapters, kinds))
    ran: Options = {
        "model": model.name,
        "peer": str(peer.server),
        "rounds": plan.rounds,
        "seconds": plan.times.counted_s,
        "threads": plan.threads,
        "ours_flags": options.ours_flags,
        "took_s": round(time.perf_counter() - began_s),
    }
    _print(result, ran)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ours against llama-server; see docs/performance.md")
    names = ",".join(workload.name for workload in WORKLOADS)
    parser.add_argument("--workloads", default=names, help=f"some of {names}; a name's beginning is enough")
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--seconds", type=float, help="of each run that count; default: 8")
    parser.add_argument(
        "--quick", action="store_true", help="one short round, few quantisations: whether it runs, not how fast"
    )
    parser.add_argument("--threads", type=int, default=num_physical_cores(), help="default: one for each core")
    parser.add_argument("--model", type=Path, help="a GGUF file of the llama architecture; default: the demo model")
    parser.add_argument("--ours-flags", default="", help="more flags for ours, in quotes")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "peer", help="where what is made is kept")
    return parser.parse_args()


def _plan(options: argparse.Namespace, log: Path) -> Plan:
    chosen = choose(options.workloads)
    if options.quick:
        chosen = tuple(workload.shortened() for workload in chosen)
    seconds = options.seconds or (3.0 if options.quick else 8.0)
    return Plan(
        chosen,
        rounds=options.rounds or (1 if options.quick else 5),
        times=Times(min(3.0, seconds / 2), seconds),
        probe_times=Times(1.0, 1.5) if options.quick else Times(2.5, 2.5),
        threads=options.threads,
        log=log,
    )


def _ours(model: Path, adapters: Sequence[AdapterFiles], flags: Sequence[str]) -> Contender:
    paths = tuple(files.peft for files in adapters)
    return Contender("ours", "default", python_server(), model, paths, tuple(flags), ())


def _peers(
    peer: Peer, quantisations: Mapping[str, Path], adapters: Sequence[AdapterFiles], kinds: Sequence[str]
) -> Callable[[Setup], list[Contender]]:
    """Every quantisation; where there are adapters, with each of `kinds` of their files."""
    plain = [
        Contender("peer", name, (str(peer.server),), path, (), ("--cache-ram", "0"))
        for name, path in quantisations.items()
    ]
    adapted = [
        replace(
            contender,
            variant=f"{contender.variant}, {kind} adapter",
            adapters=tuple(files.gguf[kind] for files in adapters),
        )
        for contender in plain
        for kind in kinds
    ]
    return lambda setup: adapted if setup.num_adapters else plain


def _print(result: Result, ran: Options) -> None:
    comparisons = list(result.comparisons.values())
    print(HEAD)
    for comparison in comparisons:
        print("\n".join(comparison_lines(comparison)))
    print("\n".join([*start_lines(result.starts), *overhead_lines(adapter_overhead(comparisons))]))
    print(json_line(_machine(), ran, comparisons, result.starts))


def _machine() -> dict[str, str | int]:
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": num_physical_cores()}


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
