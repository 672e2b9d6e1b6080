"""Gauges read from the schedulers when Prometheus asks: nothing is pushed, so nothing can be stale.

There is one scheduler for each model in memory: one, and a second while requests finish on a model that was replaced;
what can be added is added over them. Series of adapter lists exist only while a list runs, so the slots bound their
number."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.cohort import AdapterId, CohortKey
from scheduler.core import Scheduler
from server.adapters.registry import AdapterRegistry
from server.response_cache import ResponseCache


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What metrics read of a model in memory."""

    name: str
    scheduler: Scheduler
    adapters: AdapterRegistry
    responses: ResponseCache
    max_loras: int
    """Most adapters in memory; 0: no limit."""


class StateCollector(Collector):
    """The present state of the models as gauges."""

    def __init__(self, models: Sequence[MeasuredModel]) -> None:
        """`models` is read at each scrape: what is served now, the newest last."""
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges as they are now. Called on the event loop's thread, which owns the schedulers."""
        schedulers = [model.scheduler for model in self._models]
        blocks = [scheduler.kv.blocks for scheduler in schedulers]
        yield gauge("models", "Models in memory: 1, or more while requests finish on one replaced.", len(schedulers))
        yield gauge("requests_running", "Requests in a slot.", sum(len(each.running) for each in schedulers))
        yield gauge(
            "requests_waiting",
            "Requests without a slot, paused ones included.",
            sum(len(each.queue) for each in schedulers),
        )
        yield gauge(
            "requests_paused",
            "Requests that wait for a slot and still hold their KV.",
            sum(len(each.paused) for each in schedulers),
        )
        now = time.monotonic()
        yield gauge(
            "longest_list_wait_seconds",
            "Longest present wait of an adapter list with requests and without a slot.",
            max((each.queue.longest_wait_s(now) for each in schedulers), default=0),
        )
        yield gauge("slots", "Slots, busy or not.", sum(each.limits.num_slots for each in schedulers))
        yield gauge(
            "cohorts_active", "Adapter lists that share the steps now.", sum(len(each.turns) for each in schedulers)
        )
        num_blocks = sum(each.num_blocks for each in blocks)
        num_held = sum(each.num_held for each in blocks)
        yield gauge("kv_blocks", "KV blocks of 16 tokens.", num_blocks)
        yield gauge(
            "kv_blocks_cached", "Unreferenced KV blocks kept for prefix hits.", sum(each.num_idle for each in blocks)
        )
        yield gauge("kv_cache_usage_ratio", "Share of KV blocks held by requests.", num_held / max(num_blocks, 1))
        responses = [model.responses for model in self._models]
        yield gauge("response_cache_answers", "Answers that can be given again.", sum(map(len, responses)))
        yield gauge("response_cache_bytes", "Memory of these answers.", sum(each.num_bytes for each in responses))
        yield self._lists()

    def _lists(self) -> Metric:
        family = GaugeMetricFamily("cohort_list_requests_running", "Running requests by adapter list.", labels=["list"])
        counts = Counter(
            list_label(request.key, model.adapters.name_of)
            for model in self._models
            for request in model.scheduler.running.values()
        )
        for label, count in counts.items():
            family.add_metric([label], count)
        return family


def list_label(key: CohortKey, adapter_name: Callable[[AdapterId], str]) -> str:
    """An adapter list for people: `tone:0.5,facts:1`; `base` for the base model."""
    return ",".join(f"{adapter_name(adapter)}:{scale:g}" for adapter, scale in key) or "base"


def gauge(name: str, documentation: str, value: float) -> Metric:
    """Return one of our gauges without labels."""
    return GaugeMetricFamily(f"cohort_{name}", documentation, value=value)
