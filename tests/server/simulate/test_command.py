"""`cohort simulate`: what it prints and writes."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scheduler.comparison import BEGIN, END
from scheduler.policy import POLICY_NAMES
from scheduler.scenarios import SCENARIOS
from server.simulate.command import run_simulate

ROOT = Path(__file__).parents[3]


def test_it_prints_the_numbers_and_the_lists_that_waited_longest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulate(["--workload", "zipf", "--duration", "20", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    for word in (
        "zipf, seed 3",
        "policy fair, 16 slots",
        "TTFT",
        "ITL",
        "longest wait",
        "Jain",
        "pauses",
        "trace hash",
    ):
        assert word in out
    lists = out[out.index("\nlist ") :].splitlines()
    assert lists[-1].startswith("… and ")
    assert all(line.startswith("list-") for line in lists[2:-1])


def test_the_same_command_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        run_simulate(["--duration", "5"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_json_has_every_list_and_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    run_simulate(["--json", "--duration", "5", "--policy", "fcfs", "-np", "4"])
    found = json.loads(capsys.readouterr().out)
    assert (found["workload"], found["policy"], found["seed"]) == ("even", "fcfs", 0)
    assert (found["limits"]["num_slots"], found["fairness"], found["simulated_s"]) == (4, None, 5.0)
    assert found["cost"]["step_s"] == 0.0115
    assert len(found["lists"]) == 8
    assert set(found["lists"][0]["ttft_s"]) == {"count", "p50", "p95", "p99", "max"}
    assert found["sampled_per_s"] * 5.0 == pytest.approx(sum(each["num_sampled"] for each in found["lists"]))


def test_it_draws_who_ran_when(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    run_simulate(["--duration", "5", "--svg", str(path)])
    root = ElementTree.parse(path).getroot()
    found = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert found[0].startswith("even, policy fair, 16 slots, cpu-2-core: ")
    assert {f"list-{number}" for number in range(1, 9)} <= set(found)


def test_a_comparison_replaces_the_table_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    run_simulate(["--compare", "--duration", "30", "--rewrite", str(page)])
    text = page.read_text()
    assert capsys.readouterr().out.strip() in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    for name in SCENARIOS:
        for policy in POLICY_NAMES:
            assert text.count(f"| {name} | `{policy}` |") == 1
    assert text.count("\n| `fair` |") == 1


def test_a_comparison_as_json_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    run_simulate(["--compare", "--duration", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(SCENARIOS) * len(POLICY_NAMES)
    assert {each["policy"] for each in found if each["fairness"] is None} == {"fcfs", "drain"}


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [("0,a,1,x\n", "line 2: output_tokens is 'x'"), (None, "No such file")],
)
def test_a_trace_that_cannot_be_read_has_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str | None, complaint: str
) -> None:
    path = tmp_path / "trace.csv"
    if rows is not None:
        path.write_text("arrival_s,list,prompt_tokens,output_tokens\n" + rows)
    with pytest.raises(SystemExit) as exit_:
        run_simulate(["--trace", str(path)])
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_page_without_marks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(SystemExit) as exit_:
        run_simulate(["--compare", "--duration", "1", "--rewrite", str(page)])
    assert exit_.value.code == 2
    assert "make sim" in capsys.readouterr().err
    assert page.read_text() == "no marks"


def test_it_runs_without_torch_and_model() -> None:
    program = (
        "import sys; from server.__main__ import main; main(['simulate', '--duration', '1']); "
        "print(sorted({'torch', 'numpy', 'model'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
