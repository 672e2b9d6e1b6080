"""Series that are counted for every token. The library's counters take locks and several calls for each observation,
more than a token's text does; these are plain numbers until Prometheus asks.

Written and read on the event loop's thread only."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from scheduler.events import TokenSampled

# Bounds of vLLM's families, so that dashboards made for them read ours unchanged.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class PlainHistogram:
    """A histogram with the bounds that buckets end with, and one bucket for what is larger."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one on a bound belongs to the bucket that ends there."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Metric:
        """Return the series as they are now."""
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(ends, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)


class TokenCollector(Collector):
    """How many tokens were generated, and how long each took."""

    def __init__(self) -> None:
        self._num_generated = 0
        self._ttft = PlainHistogram("cohort_time_to_first_token_seconds", "From arrival to the first token.", _TTFT_S)
        self._itl = PlainHistogram("cohort_inter_token_latency_seconds", "Between two tokens of one request.", _ITL_S)

    def count(self, event: TokenSampled) -> None:
        """Count a token."""
        self._num_generated += 1
        (self._itl if event.index else self._ttft).observe(event.gap_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they are now."""
        yield CounterMetricFamily("cohort_generated_tokens", "Tokens generated.", value=self._num_generated)
        yield self._ttft.family()
        yield self._itl.family()
