"""The command `cohort simulate`: runs simulations and prints their numbers. Loads neither torch nor `model`."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from scheduler.comparison import PageError, Trial, replace_between_markers, table, visitor_table
from scheduler.core import Scheduler
from scheduler.picture import draw
from scheduler.policy import make_policy
from scheduler.report import Report
from scheduler.simulate import simulate
from scheduler.timeline import Timeline
from scheduler.trace_file import TraceError
from scheduler.workload import Traffic
from server.simulate.flags import make_parser
from server.simulate.options import OptionError, Options, Run, read_options
from server.simulate.text import report_text


def run_simulate(arguments: Sequence[str]) -> int:
    """Run `cohort simulate` and return its exit code. Wrong flags and unreadable files end the process with code 2."""
    parser = make_parser()
    try:
        options = read_options(parser.parse_args(arguments))
        trials = [_simulate(run, options) for run in options.runs]
        print(_json(trials, options) if options.as_json else _text(trials, options))
        if options.page is not None:
            page = options.page.read_text(encoding="utf-8")
            options.page.write_text(replace_between_markers(page, _tables(trials)), encoding="utf-8")
    except (OptionError, TraceError, PageError, OSError) as error:
        parser.error(str(error))
    return 0


def _simulate(run: Run, options: Options) -> Trial:
    policy = make_policy(run.policy, run.limits.num_slots, options.fairness)
    traffic = Traffic(run.scenario.workload, options.seed, run.max_requests)
    picture = options.picture
    timeline = Timeline(picture.start_s, picture.end_s) if picture else None
    began_s = time.perf_counter()
    report = simulate(Scheduler(run.limits, policy), traffic, options.cost, until_s=run.until_s, timeline=timeline)
    took_s = time.perf_counter() - began_s
    name = run.scenario.workload.name
    print(f"{name}, {run.policy}: {report.simulated_s:,.0f} s simulated in {took_s:.1f} s", file=sys.stderr)
    if picture is not None and timeline is not None:
        picture.path.write_text(draw(timeline, _title(run, report, options)), encoding="utf-8")
    return Trial(name, run.policy, report)


def _title(run: Run, report: Report, options: Options) -> str:
    workload, slots = run.scenario.workload.name, run.limits.num_slots
    return f"{workload}, policy {run.policy}, {slots} slots, {options.cost_name}: {report.sampled_per_s:.0f} tokens/s"


def _text(trials: Sequence[Trial], options: Options) -> str:
    if options.compares:
        return _tables(trials)
    run, trial = options.runs[0], trials[0]
    head = (
        f"workload        {trial.workload}, seed {options.seed}\n"
        f"scheduler       policy {run.policy}, {run.limits.num_slots} slots, {run.limits.num_blocks:,} KV blocks, "
        f"steps of at most {run.limits.max_step_tokens} tokens, costs of {options.cost_name}\n"
    )
    return head + report_text(trial.report)


def _tables(trials: Sequence[Trial]) -> str:
    return f"{table(trials)}\n\n{visitor_table(trials, 'hog', 'visitor')}"


def _json(trials: Sequence[Trial], options: Options) -> str:
    """One object a simulation, as a list where several were compared."""
    objects = [
        {
            "workload": trial.workload,
            "policy": trial.policy,
            "seed": options.seed,
            "limits": asdict(run.limits),
            "cost": asdict(options.cost),
            "fairness": asdict(options.fairness) if trial.policy == "fair" else None,
            **asdict(trial.report),
        }
        for run, trial in zip(options.runs, trials, strict=True)
    ]
    return json.dumps(objects if options.compares else objects[0], allow_nan=False, ensure_ascii=False)
