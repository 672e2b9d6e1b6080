"""Gauges read from the scheduler when Prometheus asks: nothing is pushed, so nothing can be stale.

Resident, running and waiting adapters are three different sets. Series of adapter lists exist only while a list runs,
so the slots bound their number."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.cohort import AdapterId, CohortKey
from scheduler.core import Scheduler
from scheduler.request import Request


class StateCollector(Collector):
    """The present state of one scheduler as gauges."""

    def __init__(
        self,
        scheduler: Scheduler,
        adapter_name: Callable[[AdapterId], str],
        loaded_adapters: Callable[[], Iterable[str]],
    ) -> None:
        self._scheduler = scheduler
        self._adapter_name = adapter_name
        self._loaded_adapters = loaded_adapters

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges as they are now. Called on the event loop's thread, which owns the scheduler."""
        scheduler = self._scheduler
        running, waiting = list(scheduler.running.values()), list(scheduler.queue)
        blocks = scheduler.kv.blocks
        yield _gauge("requests_running", "Requests in a slot.", len(running))
        yield _gauge("requests_waiting", "Requests without a slot, paused ones included.", len(waiting))
        yield _gauge("requests_paused", "Requests that wait for a slot and still hold their KV.", len(scheduler.paused))
        yield _gauge(
            "longest_list_wait_seconds",
            "Longest present wait of an adapter list with requests and without a slot.",
            scheduler.queue.longest_wait_s(time.monotonic()),
        )
        yield _gauge("slots", "Slots, busy or not.", scheduler.limits.num_slots)
        yield _gauge("cohorts_active", "Adapter lists that share the steps now.", len(scheduler.turns))
        yield _gauge("kv_blocks", "KV blocks of 16 tokens.", blocks.num_blocks)
        yield _gauge("kv_blocks_cached", "Unreferenced KV blocks kept for prefix hits.", blocks.num_idle)
        yield _gauge(
            "kv_cache_usage_ratio", "Share of KV blocks held by requests.", blocks.num_held / blocks.num_blocks
        )
        yield self._lists(running)
        yield from self._adapters(running, waiting)

    def _lists(self, running: list[Request]) -> Metric:
        family = GaugeMetricFamily("cohort_list_requests_running", "Running requests by adapter list.", labels=["list"])
        for label, count in Counter(list_label(request.key, self._adapter_name) for request in running).items():
            family.add_metric([label], count)
        return family

    def _adapters(self, running: list[Request], waiting: list[Request]) -> Iterator[Metric]:
        loaded = sorted(self._loaded_adapters())
        family = GaugeMetricFamily("cohort_adapter_loaded", "1 for each adapter in memory.", labels=["adapter"])
        for name in loaded:
            family.add_metric([name], 1)
        yield family
        for state, requests in (("running", running), ("waiting", waiting)):
            family = GaugeMetricFamily(
                f"cohort_adapter_requests_{state}",
                f"Requests {state} whose list holds this adapter.",
                labels=["adapter"],
            )
            counts = Counter(name for request in requests for name in adapter_names(request.key, self._adapter_name))
            for name in sorted({*loaded, *counts}):
                family.add_metric([name], counts[name])
            yield family


def adapter_names(key: CohortKey, adapter_name: Callable[[AdapterId], str]) -> list[str]:
    """The names of the adapters in a list."""
    return [adapter_name(adapter) for adapter, _ in key]


def list_label(key: CohortKey, adapter_name: Callable[[AdapterId], str]) -> str:
    """An adapter list for people: `tone:0.5,facts:1`; `base` for the base model."""
    return ",".join(f"{adapter_name(adapter)}:{scale:g}" for adapter, scale in key) or "base"


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"cohort_{name}", documentation, value=value)
