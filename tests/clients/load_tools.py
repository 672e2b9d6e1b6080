"""Run a load tool unmodified against the server and read its own report: `python -m tests.clients.load_tools TOOL URL
TOKENIZER FOLDER`. Runs in the tool's environment; docs/clients.md has the same commands.

Each run is short: it shows that the tool works and what its figures look like, not how fast the server is.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.clients.checks import report

NUM_REQUESTS, NUM_PROMPT, NUM_OUTPUT, CONCURRENCY = 12, 48, 24, 4


@dataclass(frozen=True, slots=True)
class Run:
    """Where a tool runs."""

    url: str
    tokenizer: str
    """A directory with the model's tokenizer, as the tool would load it from a hub."""
    folder: Path
    """For the tool's reports."""

    def execute(self, *command: str, is_offline: bool = True) -> None:
        """Run a command of this environment, told not to ask the hub. Raises CalledProcessError where it fails."""
        variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if is_offline else {}
        print("$", " ".join(command), flush=True)
        subprocess.run(command, check=True, cwd=self.folder, env=os.environ | variables)

    def read(self, pattern: str) -> Any:
        """Return the JSON of the one file that matches."""
        [path] = self.folder.rglob(pattern)
        return json.loads(path.read_text(encoding="utf-8"))


def outcome(tokens_per_s: float, ttft_ms: float, itl_ms: float) -> str:
    """Return what came out of a run without failures, as docs/clients.md quotes it."""
    return (
        f"{NUM_REQUESTS} requests, none failed, {tokens_per_s:.0f} tok/s, "
        f"median TTFT {ttft_ms:.0f} ms, median ITL {itl_ms:.0f} ms"
    )


def vllm(run: Run) -> str:
    """`vllm bench serve` over the base model and both adapters, from vLLM's own source."""
    run.execute(
        *(sys.executable, "-m", "tests.clients.vllm_bench", "--backend", "openai", "--base-url", run.url),
        *("--model", "smollm2", "--tokenizer", run.tokenizer, "--dataset-name", "random"),
        *("--num-prompts", str(NUM_REQUESTS), "--random-input-len", str(NUM_PROMPT)),
        *("--random-output-len", str(NUM_OUTPUT), "--ignore-eos", "--max-concurrency", str(CONCURRENCY)),
        *("--lora-modules", "smollm2", "pirate", "emoji", "--lora-assignment", "round-robin", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(run.folder), "--result-filename", "vllm.json"),
    )
    found = run.read("vllm.json")
    assert found["completed"] == NUM_REQUESTS, found
    assert found["failed"] == 0, found
    assert found["total_output_tokens"] == NUM_REQUESTS * NUM_OUTPUT, found
    return outcome(found["output_throughput"], found["median_ttft_ms"], found["median_itl_ms"])


def guidellm(run: Run) -> str:
    """`guidellm run` with concurrent streams of chat."""
    run.execute(
        *(str(Path(sys.executable).with_name("guidellm")), "run"),
        *("--backend", f"kind=openai_http,target={run.url},model=pirate"),
        *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={NUM_PROMPT},output_tokens={NUM_OUTPUT}"),
        *("--output", f"kind=json,path={run.folder / 'guidellm.json'}"),
        "--disable-console-interactive",
    )
    [benchmark] = run.read("guidellm.json")["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    assert totals["successful"] == NUM_REQUESTS, totals
    assert totals["errored"] == 0, totals
    rate = metrics["output_tokens_per_second"]["successful"]["mean"]
    ttft_ms = metrics["time_to_first_token_ms"]["successful"]["median"]
    itl_ms = metrics["inter_token_latency_ms"]["successful"]["median"]
    return outcome(rate, ttft_ms, itl_ms)


def aiperf(run: Run) -> str:
    """`aiperf profile` with streamed chat, over the base model and an adapter."""
    run.execute(
        *(str(Path(sys.executable).with_name("aiperf")), "profile", "--url", urlsplit(run.url).netloc),
        *("--model", "smollm2,pirate", "--model-selection-strategy", "round_robin"),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", run.tokenizer),
        *("--concurrency", str(CONCURRENCY), "--request-count", str(NUM_REQUESTS)),
        *("--synthetic-input-tokens-mean", str(NUM_PROMPT), "--output-tokens-mean", str(NUM_OUTPUT)),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(run.folder), "--ui", "none"),
        is_offline=False,  # offline, it takes directories for names in the hub's cache
    )
    found = run.read("profile_export_aiperf.json")
    assert found["request_count"]["avg"] == NUM_REQUESTS, found
    assert not found.get("error_summary"), found["error_summary"]
    times = (found[name]["p50"] for name in ("time_to_first_token", "inter_token_latency"))
    return outcome(found["output_token_throughput"]["avg"], *times)


def locust(run: Run) -> str:
    """`locust` with the users of locust_users.py, for ten seconds."""
    users = Path(__file__).with_name("locust_users.py")
    run.execute(
        *(sys.executable, "-m", "locust", "--headless", "--locustfile", str(users), "--host", run.url),
        *("--users", str(CONCURRENCY), "--spawn-rate", str(CONCURRENCY), "--run-time", "10s", "--stop-timeout", "60"),
        *("--json-file", str(run.folder / "locust"), "--exit-code-on-error", "1", "--only-summary"),
    )
    found = run.read("locust.json")
    assert found
    assert sum(entry["num_failures"] for entry in found) == 0, found
    num_requests = sum(entry["num_requests"] for entry in found)
    return f"{num_requests} requests in 10 s, none failed"


TOOLS: dict[str, tuple[str, Callable[[Run], str]]] = {
    "vllm": ("vllm", vllm),
    "guidellm": ("guidellm", guidellm),
    "aiperf": ("aiperf", aiperf),
    "locust": ("locust", locust),
}
"""By name: the package whose version is told, and how it is run."""


def main() -> None:
    """Run the tool that is named, and report."""
    _, tool, url, tokenizer, folder = sys.argv
    package, run_tool = TOOLS[tool]
    report(package, run_tool(Run(url, tokenizer, Path(folder))))


if __name__ == "__main__":
    main()
