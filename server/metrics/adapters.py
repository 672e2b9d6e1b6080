"""Series of adapters: which are in memory, in use and asked for, and what was done under each.

Resident, running and waiting adapters are three different sets. An adapter has series while it is in memory or a
request asks for it, so their number is bounded by both. Its totals are kept beyond that, for it may come back, and a
counter must not run backwards then; how many are kept is bounded too."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.metrics.state import MeasuredModel, gauge

_MAX_REMEMBERED = 8192
"""Adapters whose totals are kept."""
TOTALS = {
    "generated_tokens": "Tokens generated under lists that hold this adapter.",
    "requests_finished": "Requests ended whose list holds this adapter.",
}


class AdapterTotals:
    """What was counted for each adapter, by name."""

    def __init__(self) -> None:
        self._totals: OrderedDict[str, Counter[str]] = OrderedDict()

    def count(self, name: str, what: str) -> None:
        """Add one to a total of an adapter."""
        totals = self._totals.setdefault(name, Counter())
        totals[what] += 1

    def get(self, name: str, what: str) -> int:
        """Return a total."""
        return self._totals[name][what] if name in self._totals else 0

    def trim(self, shown: Iterable[str]) -> None:
        """Forget the totals of those that were shown longest ago, where there are too many."""
        for name in shown:
            if name in self._totals:
                self._totals.move_to_end(name)
        while len(self._totals) > _MAX_REMEMBERED:
            self._totals.popitem(last=False)


class AdapterCollector(Collector):
    """The adapters of the models."""

    def __init__(self, models: Sequence[MeasuredModel], totals: AdapterTotals) -> None:
        """Both are read at each scrape."""
        self._models = models
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they are now. Called on the event loop's thread."""
        residencies = [model.adapters.residency for model in self._models]
        pinned = [
            entry
            for model in self._models
            for entry in model.adapters.catalog.entries
            if entry.is_pinned and model.adapters.residency.resident(entry) is not None
        ]
        yield gauge("adapters_resident", "Adapters in memory.", sum(len(each.residents) for each in residencies))
        yield gauge("adapters_resident_bytes", "Memory of the adapters.", sum(each.num_bytes for each in residencies))
        yield gauge("adapters_pinned", "Adapters in memory that are never evicted.", len(pinned))
        yield gauge(
            "adapter_references",
            "Adapters held by requests, each once for every body that asked for it; 0 when idle.",
            sum(each.num_references for each in residencies),
        )
        yield gauge(
            "requests_waiting_for_adapter",
            "Requests whose adapters are not in memory yet.",
            sum(each.num_waiting for each in residencies),
        )
        yield from self._by_name()

    def _by_name(self) -> Iterator[Metric]:
        resident = sorted(resident_names(self._models))
        running, waiting = running_by_adapter(self._models), waiting_by_adapter(self._models)
        shown = sorted({*resident, *running, *waiting})
        yield _series(GaugeMetricFamily, "loaded", "1 for each adapter in memory.", dict.fromkeys(resident, 1))
        for state, counts in (("running", running), ("waiting", waiting)):
            documentation = f"Requests {state} whose list holds this adapter."
            yield _series(GaugeMetricFamily, f"requests_{state}", documentation, {name: counts[name] for name in shown})
        for what, documentation in TOTALS.items():
            values = {name: self._totals.get(name, what) for name in shown}
            yield _series(CounterMetricFamily, what, documentation, values)
        self._totals.trim(shown)


def _series(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, documentation: str, values: Mapping[str, int]
) -> Metric:
    family = kind(f"cohort_adapter_{name}", documentation, labels=["adapter"])
    for adapter, value in values.items():
        family.add_metric([adapter], value)
    return family


def resident_names(models: Iterable[MeasuredModel]) -> set[str]:
    """The names of the adapters in memory."""
    return {resident.name for model in models for resident in model.adapters.residency.residents}


def running_by_adapter(models: Iterable[MeasuredModel]) -> Counter[str]:
    """How many running requests use each adapter."""
    return Counter(
        model.adapters.name_of(adapter)
        for model in models
        for request in model.scheduler.running.values()
        for adapter, _ in request.key
    )


def waiting_by_adapter(models: Iterable[MeasuredModel]) -> Counter[str]:
    """How many requests ask for each adapter and have no slot, be it that the adapter is not in memory yet."""
    counts: Counter[str] = Counter()
    for model in models:
        for request in model.scheduler.queue:
            counts.update(model.adapters.name_of(adapter) for adapter, _ in request.key)
        counts.update(entry.name for entry in model.adapters.residency.awaited)
    return counts
