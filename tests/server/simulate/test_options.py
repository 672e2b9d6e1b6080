"""What the flags of `cohort simulate` ask for, and which contradict each other."""

import math
from pathlib import Path

import pytest

from scheduler.cost_model import CPU_2_CORE, GPU_7B, CostModel
from scheduler.fairness import DEFAULT_FAIRNESS, FairnessSettings
from scheduler.policy import POLICY_NAMES
from scheduler.scenarios import SCENARIOS
from scheduler.workload import Bursts, Clients, Fixed, Geometric, Poisson, Replay, Shape, Uniform, Workload, zipf_lists
from server.simulate.flags import make_parser
from server.simulate.options import OptionError, Options, Picture, read_options


def read(*arguments: str) -> Options:
    return read_options(make_parser().parse_args(arguments))


def workload_of(*arguments: str) -> Workload:
    (run,) = read(*arguments).runs
    return run.scenario.workload


def test_without_flags_the_even_workload_runs_under_our_policy() -> None:
    options = read()
    (run,) = options.runs
    assert (run.scenario, run.policy, run.until_s) == (SCENARIOS["even"](), "fair", run.scenario.duration_s)
    assert (run.limits.num_slots, run.limits.num_blocks, run.limits.max_context) == (16, 4096, 4096)
    assert (options.cost, options.fairness, options.seed) == (CPU_2_CORE, DEFAULT_FAIRNESS, 0)
    assert (options.as_json, options.compares, options.page, options.picture) == (False, False, None, None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_named_workload_brings_its_slots(name: str) -> None:
    (run,) = read("--workload", name).runs
    assert run.scenario == SCENARIOS[name]()
    assert run.limits.num_slots == run.scenario.num_slots


def test_limits_can_be_set() -> None:
    (run,) = read("-np", "2", "-b", "32", "--context", "64", "--kv-tokens", "100", "--max-waiting", "0").runs
    assert run.limits.num_slots == 2
    assert run.limits.max_step_tokens == 32
    assert (run.limits.max_context, run.limits.num_blocks, run.limits.max_waiting) == (64, 6, 0)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="a step of 8 tokens cannot advance 16 slots"):
        read("-b", "8")


def test_fairness_can_be_set() -> None:
    options = read("--max-wait", "0.5", "--fair-slack", "100", "--max-active-lists", "3")
    assert options.fairness == FairnessSettings(max_wait_s=0.5, slack_tokens=100, max_active_lists=3)


def test_costs_are_a_preset_or_parts_of_one_replaced() -> None:
    assert read("--cost", "gpu-7b").cost == GPU_7B
    given = ("--step-ms", "5", "--prefill-token-us", "100", "--decode-row-us", "20", "--kv-token-us", "0.5")
    cost = read(*given).cost
    expected = CostModel(5e-3, 100e-6, 20e-6, 0.5e-6, tile=CPU_2_CORE.tile)
    assert cost.step_s == pytest.approx(expected.step_s)
    assert cost.prefill_token_s == pytest.approx(expected.prefill_token_s)
    assert cost.decode_row_s == pytest.approx(expected.decode_row_s)
    assert cost.kv_token_s == pytest.approx(expected.kv_token_s)


def test_a_workload_of_ones_own_has_defaults() -> None:
    shape = Shape(zipf_lists(4, 0.0), Uniform(20, 100), Geometric(64))
    assert workload_of("--arrivals", "poisson") == Workload("poisson", sources=(Poisson(1.0, shape),))
    assert workload_of("--arrivals", "bursts") == Workload("bursts", sources=(Bursts(1.0, 5.0, 25.0, shape),))
    assert workload_of("--arrivals", "clients") == Workload("clients", clients=(Clients(16, shape),))


def test_a_workload_of_ones_own_is_as_described() -> None:
    what = ("--lists", "9", "--zipf", "1.5", "--prompt", "fixed:7", "--output", "fixed:8")
    shape = Shape(zipf_lists(9, 1.5), Fixed(7), Fixed(8))
    poisson = workload_of("--arrivals", "poisson", "--rate", "2", *what)
    bursts = workload_of("--arrivals", "bursts", "--rate", "2", "--on", "3", "--off", "4", *what)
    clients = workload_of("--arrivals", "clients", "--clients", "5", "--think", "6", *what)
    assert poisson.sources == (Poisson(2.0, shape),)
    assert bursts.sources == (Bursts(2.0, 3.0, 4.0, shape),)
    assert clients.clients == (Clients(5, shape, 6.0),)


def test_a_trace_runs_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,list,prompt_tokens,output_tokens\n1,a,2,3\n")
    (run,) = read("--trace", str(path)).runs
    assert run.scenario.workload.name == "mine.csv"
    (source,) = run.scenario.workload.sources
    assert isinstance(source, Replay)
    assert len(source.recorded) == 1
    assert run.until_s == math.inf


def test_a_run_ends_at_a_time_or_after_requests_or_whichever_is_first() -> None:
    for given, until_s, requests in (
        (("--duration", "7"), 7.0, None),
        (("--requests", "8"), math.inf, 8),
        (("--duration", "7", "--requests", "8"), 7.0, 8),
    ):
        (run,) = read(*given).runs
        assert (run.until_s, run.max_requests) == (until_s, requests)


def test_a_workload_that_ends_is_run_to_its_last_answer_unless_told_otherwise() -> None:
    (run,) = read("--workload", "zipf").runs
    assert (run.until_s, run.max_requests) == (math.inf, 1800)
    (run,) = read("--workload", "zipf", "--duration", "7", "--requests", "8").runs
    assert (run.until_s, run.max_requests) == (7.0, 8)


def test_a_comparison_runs_every_policy_on_every_workload() -> None:
    options = read("--compare", "--rewrite", "page.md", "--duration", "5", "--max-wait", "2")
    assert [(run.scenario.workload.name, run.policy) for run in options.runs] == [
        (name, policy) for name in SCENARIOS for policy in POLICY_NAMES
    ]
    assert {run.until_s for run in options.runs} == {5.0}
    assert (options.compares, options.page, options.fairness.max_wait_s) == (True, Path("page.md"), 2.0)


def test_a_picture_may_show_a_part_of_the_time() -> None:
    assert read("--svg", "a.svg").picture == Picture(Path("a.svg"), 0.0, math.inf)
    assert read("--svg", "a.svg", "--svg-from", "3", "--svg-to", "4").picture == Picture(Path("a.svg"), 3.0, 4.0)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--rate 2", "--rate describes a workload of --arrivals poisson or bursts"),
        ("--workload zipf --lists 5", "--lists describes a workload of --arrivals poisson or bursts or clients"),
        ("--arrivals poisson --on 5", "--on describes a workload of --arrivals bursts"),
        ("--arrivals clients --rate 5", "--rate describes a workload of --arrivals poisson or bursts"),
        ("--arrivals bursts --clients 5", "--clients describes a workload of --arrivals clients"),
        ("--policy fcfs --max-wait 5", "--max-wait is a setting of --policy fair"),
        ("--policy drain --max-active-lists 5", "--max-active-lists is a setting of --policy fair"),
        ("--compare --policy fair", "--policy and --compare exclude each other"),
        ("--compare --svg a.svg", "--svg and --compare exclude each other"),
        ("--compare --requests 5", "--requests and --compare exclude each other"),
        ("--rewrite page.md", "--rewrite writes the table of --compare"),
        ("--svg-from 5", "--svg-from and --svg-to say what --svg draws, which was not given"),
        ("--svg a.svg --svg-from 5 --svg-to 5", "--svg-from 5 does not lie before --svg-to 5"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(line: str, complaint: str) -> None:
    with pytest.raises(OptionError) as error:
        read(*line.split())
    assert str(error.value) == complaint


@pytest.mark.parametrize(
    "line",
    [
        "--wrong",
        "--workload odd",
        "--workload even --trace a.csv",
        "--policy random",
        "--duration 0",
        "--duration nan",
        "--max-wait -1",
        "--requests 0",
        "--requests 1.5",
        "-np 0",
        "--arrivals poisson --prompt 60",
        "--step-ms 0",
        "--seed x",
    ],
)
def test_a_wrong_value_ends_the_process_with_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        read(*line.split())
    assert exit_.value.code == 2
    assert "error:" in capsys.readouterr().err
