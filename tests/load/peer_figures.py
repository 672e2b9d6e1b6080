"""From the streams of one run to its figures, and from the figures of all rounds to medians and ratios. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.load.bench import jain_index
from tests.load.client import Stream


@dataclass(frozen=True, slots=True)
class Span:
    """The time that counts, seconds of `time.perf_counter`."""

    from_s: float
    until_s: float

    def __contains__(self, time_s: float) -> bool:
        return self.from_s <= time_s < self.until_s

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.until_s - self.from_s


@dataclass
class Figures:
    """What one run of a workload measured."""

    tokens_per_s: float
    prompt_tokens_per_s: float
    ttfts_s: list[float]
    """Of requests whose first token came in the span, and of those that wait for theirs in vain (see `condense`)."""
    gaps_s: list[float]
    """Times between the tokens of a request."""
    list_tokens: dict[str, int]
    """Tokens of each adapter list."""
    num_unserved: int = 0
    """Requests that waited to the end of the span, and longer than the median request."""

    @property
    def jain(self) -> float:
        """Jain's index over the tokens of the lists."""
        return jain_index([float(tokens) for tokens in self.list_tokens.values()])

    @property
    def worst_list(self) -> int:
        """Tokens of the list with fewest."""
        return min(self.list_tokens.values())


def condense(lists: Sequence[str], clients: Sequence[Sequence[Stream]], span: Span, num_prompt: int) -> Figures:
    """Return the figures of a run: `clients` holds each client's streams, `lists` the name of its adapter list.

    A server that starves a list would show the times of the lucky ones only; so a request that still waits at the end
    counts with the time it has waited so far, where that is more than the median of the others.
    """
    streams = [stream for of_client in clients for stream in of_client]
    served = [s.ttft_s for s in streams if s.token_times_s and s.token_times_s[0] in span]
    waited = [span.until_s - s.sent_s for s in streams if not s.token_times_s or s.token_times_s[0] >= span.until_s]
    typical_s = statistics.median(served) if served else 0.0
    unserved = [wait_s for wait_s in waited if wait_s > typical_s]
    list_tokens = dict.fromkeys(lists, 0)
    for name, of_client in zip(lists, clients, strict=True):
        list_tokens[name] += sum(t in span for stream in of_client for t in stream.token_times_s)
    return Figures(
        tokens_per_s=sum(list_tokens.values()) / span.length_s,
        prompt_tokens_per_s=num_prompt * len(served) / span.length_s,
        ttfts_s=served + unserved,
        gaps_s=[
            later - earlier
            for times in (stream.token_times_s for stream in streams)
            for earlier, later in pairwise(times)
            if later in span
        ],
        list_tokens=list_tokens,
        num_unserved=len(unserved),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value; NaN where one is NaN."""
    if any(math.isnan(value) for value in values):
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(values), min(values), max(values))


def ratio(numerator: float, denominator: float) -> float:
    """Return their ratio; NaN where there is none."""
    return numerator / denominator if denominator else math.nan


@dataclass
class Summary:
    """One contender's figures over the rounds: medians; percentiles over the samples of all rounds, milliseconds."""

    tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    jain: float
    worst_list: float
    num_unserved: int
    rounds: list[float] = field(default_factory=list)
    """Tokens per second of each round."""


def summarise(rounds: Sequence[Figures]) -> Summary:
    """Return the summary of at least one round."""
    ttfts = [1e3 * ttft_s for figures in rounds for ttft_s in figures.ttfts_s]
    gaps = [1e3 * gap_s for figures in rounds for gap_s in figures.gaps_s]
    return Summary(
        tokens_per_s=statistics.median(figures.tokens_per_s for figures in rounds),
        prompt_tokens_per_s=statistics.median(figures.prompt_tokens_per_s for figures in rounds),
        ttft_ms={f"p{p}": percentile(ttfts, p) for p in (50, 90, 99)},
        itl_ms={f"p{p}": percentile(gaps, p) for p in (50, 99)},
        jain=statistics.median(figures.jain for figures in rounds),
        worst_list=statistics.median(figures.worst_list for figures in rounds),
        num_unserved=sum(figures.num_unserved for figures in rounds),
        rounds=[figures.tokens_per_s for figures in rounds],
    )


def ratios(ours: Sequence[Figures], peer: Sequence[Figures]) -> dict[str, Spread]:
    """Return ours / the peer's, round by round: of speeds more is better, of times less."""
    pairs = list(zip(ours, peer, strict=True))
    return {
        "tokens_per_s": spread([ratio(a.tokens_per_s, b.tokens_per_s) for a, b in pairs]),
        "prompt_tokens_per_s": spread([ratio(a.prompt_tokens_per_s, b.prompt_tokens_per_s) for a, b in pairs]),
        "ttft_p50": spread([ratio(percentile(a.ttfts_s, 50), percentile(b.ttfts_s, 50)) for a, b in pairs]),
        "itl_p50": spread([ratio(percentile(a.gaps_s, 50), percentile(b.gaps_s, 50)) for a, b in pairs]),
    }


def fastest(speeds: Mapping[str, float]) -> str:
    """Return the name of the largest speed, the first of equals."""
    return max(speeds, key=lambda name: speeds[name])
