"""Series of tokens, against the library's own counters and histograms."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from scheduler.batch import Sample
from scheduler.events import TokenSampled
from server.metrics.tokens import PlainHistogram, TokenCollector

BOUNDS = (0.01, 0.5, 1, 20)


class Alone:
    """A registry of one family."""

    def __init__(self, histogram: PlainHistogram) -> None:
        self._histogram = histogram

    def collect(self) -> list[object]:
        return [self._histogram.family()]


@settings(deadline=None)
@given(values=st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100)), max_size=30))
def test_a_plain_histogram_is_exposed_as_the_librarys(values: list[float]) -> None:
    registry = CollectorRegistry()
    oracle = Histogram("name", "Text.", buckets=BOUNDS, registry=registry)
    plain = PlainHistogram("name", "Text.", BOUNDS)
    for value in values:
        oracle.observe(value)
        plain.observe(value)

    expected = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    assert generate_latest(Alone(plain)).decode().splitlines() == expected  # type: ignore[arg-type]


def test_the_first_token_counts_as_time_to_first_token_and_later_ones_as_latency() -> None:
    tokens = TokenCollector()
    for index, gap_s in enumerate((0.25, 0.5, 0.75)):
        tokens.count(TokenSampled(0, (), index, Sample(0, 1), gap_s, 9.0))

    samples = {sample.name: sample.value for family in tokens.collect() for sample in family.samples}
    assert samples["cohort_generated_tokens_total"] == 3
    assert samples["cohort_time_to_first_token_seconds_sum"] == 0.25
    assert samples["cohort_time_to_first_token_seconds_count"] == 1
    assert samples["cohort_inter_token_latency_seconds_sum"] == 1.25
    assert samples["cohort_inter_token_latency_seconds_count"] == 2
