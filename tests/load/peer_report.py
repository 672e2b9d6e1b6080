"""What `make bench-peer` prints: a table for people, and one line of JSON with all of it. It must not know how it was
measured.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.load.peer_figures import Figures, Spread, Summary, ratio, ratios, spread, summarise
from tests.load.peer_servers import Start

HEAD = (
    f"{'workload':14} {'server':6} {'quantisation':23} {'tok/s':>7} {'prompt/s':>8} {'TTFT p50/p90/p99 ms':>20}"
    f" {'ITL p50/p99 ms':>15} {'Jain':>6} {'worst':>6} {'unserved':>8} {'perplexity':>10}"
)


@dataclass
class Comparison:
    """One workload, measured on both servers."""

    workload: str
    quantisation: str
    """The peer's."""
    probe: dict[str, float]
    """What each of its quantisations reached in the probe."""
    counts_prompts: bool = False
    ours: list[Figures] = field(default_factory=list)
    peer: list[Figures] = field(default_factory=list)
    our_perplexity: float = math.nan
    peer_perplexity: float = math.nan


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return the three lines of a workload: ours, the peer's, the ratios."""
    ours, peer = summarise(comparison.ours), summarise(comparison.peer)
    name = comparison.workload
    compared = ratios(comparison.ours, comparison.peer)
    of_prompts = {"prompt_tokens_per_s": "prompt/s", "ttft_p50": "TTFT p50"}
    of_answers = {"tokens_per_s": "tok/s", "ttft_p50": "TTFT p50", "itl_p50": "ITL p50"}
    shown = of_prompts if comparison.counts_prompts else of_answers
    return [
        f"{name:14} {'ours':6} {'default':23} {_columns(ours, comparison.our_perplexity)}",
        f"{'':14} {'peer':6} {comparison.quantisation:23} {_columns(peer, comparison.peer_perplexity)}",
        f"{'':14} ours / peer: " + " · ".join(f"{label} {_range(compared[key])}" for key, label in shown.items()),
    ]


def _columns(summary: Summary, perplexity: float) -> str:
    ttft = "/".join(f"{value:.0f}" for value in summary.ttft_ms.values())
    itl = "/".join(f"{value:.1f}" for value in summary.itl_ms.values())
    return (
        f"{summary.tokens_per_s:7.1f} {summary.prompt_tokens_per_s:8.0f} {ttft:>20} {itl:>15} {summary.jain:6.3f}"
        f" {summary.worst_list:6.0f} {summary.num_unserved:8} {perplexity:10.3f}"
    )


def _range(value: Spread) -> str:
    return f"{value.median:.2f} [{value.least:.2f} to {value.most:.2f}]"


@dataclass(frozen=True, slots=True)
class StartSummary:
    """The starts of one server with one setup: medians."""

    ready_s: float
    first_token_s: float
    peak_rss_mb: float


def start_summary(starts: Sequence[Start]) -> StartSummary:
    """Return the medians of at least one start."""
    return StartSummary(
        spread([start.ready_s for start in starts]).median,
        spread([start.first_token_s for start in starts]).median,
        spread([start.peak_rss_bytes / 1e6 for start in starts]).median,
    )


def start_lines(starts: Mapping[tuple[str, str], Sequence[Start]]) -> list[str]:
    """Return a table of the starts by (setup, server)."""
    lines = [f"{'started for':14} {'server':6} {'ready s':>8} {'first token s':>14} {'peak RSS MB':>12}"]
    for (setup, server), of_server in starts.items():
        summary = start_summary(of_server)
        lines.append(
            f"{setup:14} {server:6} {summary.ready_s:8.2f} {summary.first_token_s:14.2f} {summary.peak_rss_mb:12.0f}"
        )
    return lines


def adapter_overhead(comparisons: Sequence[Comparison]) -> dict[str, dict[str, Spread]]:
    """Return each server's speed with the adapter against its own without, by number of clients."""
    by_name = {comparison.workload: comparison for comparison in comparisons}
    found = {}
    for name, comparison in by_name.items():
        base = by_name.get(name.replace("adapter-", "base-"))
        if name.startswith("adapter-") and base is not None:
            found[name] = {
                "ours": spread(_paired(comparison.ours, base.ours)),
                "peer": spread(_paired(comparison.peer, base.peer)),
            }
    return found


def _paired(above: Sequence[Figures], below: Sequence[Figures]) -> list[float]:
    return [ratio(a.tokens_per_s, b.tokens_per_s) for a, b in zip(above, below, strict=True)]


def overhead_lines(overheads: Mapping[str, Mapping[str, Spread]]) -> list[str]:
    """Return a line for each workload of the adapter."""
    return [
        f"{name} / base: ours {_range(servers['ours'])} · peer {_range(servers['peer'])}"
        for name, servers in overheads.items()
    ]


def json_line(
    machine: Mapping[str, str | int],
    options: Mapping[str, str | int | float],
    comparisons: Sequence[Comparison],
    starts: Mapping[tuple[str, str], Sequence[Start]],
) -> str:
    """Return everything as one line of JSON; null where there is no number."""
    report = {
        "machine": machine,
        "options": options,
        "workloads": {comparison.workload: _comparison(comparison) for comparison in comparisons},
        "adapter_overhead": {
            name: {server: asdict(value) for server, value in servers.items()}
            for name, servers in adapter_overhead(comparisons).items()
        },
        "starts": {
            f"{setup} {server}": asdict(start_summary(of_server)) for (setup, server), of_server in starts.items()
        },
    }
    return json.dumps(_without_nan(report))


def _comparison(comparison: Comparison) -> dict[str, object]:
    return {
        "quantisation": comparison.quantisation,
        "probe": comparison.probe,
        "ours": asdict(summarise(comparison.ours)) | {"perplexity": comparison.our_perplexity},
        "peer": asdict(summarise(comparison.peer)) | {"perplexity": comparison.peer_perplexity},
        "ratios": {name: asdict(value) for name, value in ratios(comparison.ours, comparison.peer).items()},
    }


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value
