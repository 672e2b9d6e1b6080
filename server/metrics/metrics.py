"""What Prometheus sees: counters and histograms fed by the events of schedulers and of adapters' memory.

Every family is called `cohort_…`. What is read at scrape time stands in `state.py` and `adapters.py`,
what is counted for every token in `tokens.py`; the names that existing dashboards and gateways read are the same
series again, from the table in `aliases.py`, and what only llama-server counts is in `llama_server.py`.
Label values are chosen by the server (adapter names, reasons, states), and their number is bounded. One `Metrics` lasts
as long as the process, whatever models it serves: no counter runs backwards where another model takes over."""

import time
from collections.abc import Callable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from scheduler.cohort import AdapterId
from scheduler.events import (
    Admitted,
    Event,
    Finished,
    FinishReason,
    Paused,
    Preempted,
    Resumed,
    Shifted,
    StepDone,
    TokenSampled,
)
from server.adapters.resident import AdapterDropped, AdapterLoaded, AdapterLoadFailed, ResidencyEvent
from server.metrics.adapters import AdapterCollector, AdapterTotals
from server.metrics.aliases import AliasCollector
from server.metrics.llama_server import HIGH_WATER_MARK, LlamaServerCollector
from server.metrics.state import MeasuredModel, StateCollector
from server.metrics.tokens import TokenCollector

AdapterName: TypeAlias = Callable[[AdapterId], str]

# The library's switch is process-wide. Nobody charts when a counter was made, and it doubles the series.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Bounds of vLLM's families, so that dashboards made for them read ours unchanged; steps are finer: one tunes them.
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)
_LOAD_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_HEAD = f"# TYPE {HIGH_WATER_MARK} ".encode()
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server. `registry` is what `/metrics` renders."""

    def __init__(self) -> None:
        self.started_s = time.time()
        own = CollectorRegistry()
        self._own = own
        self._models: list[MeasuredModel] = []
        self._adapter_totals = AdapterTotals()
        self._tokens = TokenCollector()
        self._add_request_metrics()
        self._add_step_metrics()
        self._add_adapter_metrics()
        own.register(self._tokens)
        own.register(StateCollector(self._models))
        own.register(AdapterCollector(self._models, self._adapter_totals))
        self.registry = CollectorRegistry()
        self.registry.register(own)
        self.registry.register(AliasCollector(own, self._models))
        self.llama_server = LlamaServerCollector()
        self.registry.register(self.llama_server)

    def add(self, model: MeasuredModel) -> None:
        """Read a model too from now on; it gives its name to vLLM's series."""
        self._models.append(model)

    def remove(self, model: MeasuredModel) -> None:
        """Read a model no more; what was counted stays."""
        self._models.remove(model)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition and its content type, in the format that the header `accept` asks for."""
        encode, content_type = choose_encoder(accept)
        body: bytes = encode(self.registry)
        if content_type.startswith("text/plain"):  # OpenMetrics has no counters without _total
            body = body.replace(_HEAD + b"gauge", _HEAD + b"counter")
        return body, content_type

    def _add_request_metrics(self) -> None:
        self._finished = self._counter("requests_finished", "Requests ended, by reason.", "reason")
        for reason in FinishReason:
            self._finished.labels(reason)
        self._preemptions = self._counter("preemptions", "Requests that lost their KV blocks to pressure.")
        self._shifts = self._counter("context_shifts", "Requests that gave up a part of their full context.")
        self._pauses = self._counter("pauses", "Running requests that gave up their slot to another adapter list.")
        self._prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of admitted requests, cached ones included."
        )
        self._prefix_queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self._response_queries = self._counter(
            "response_cache_queries", "Deterministic requests looked up in the response cache."
        )
        self._response_hits = self._counter(
            "response_cache_hits",
            "Requests answered from the response cache; they take no slot, and count nowhere else.",
        )
        self._e2e = self._histogram("request_duration_seconds", "From arrival to the end of a request.", _REQUEST_S)
        self._queue_s = self._histogram(
            "queue_time_seconds", "From arrival, preemption or pause to a slot.", _REQUEST_S
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of an ended request.", _TOKENS)
        self._request_generated = self._histogram("request_generated_tokens", "Tokens an ended request got.", _TOKENS)

    def _add_step_metrics(self) -> None:
        self._steps = self._counter("steps", "Steps, by the number of adapter lists in their batch: always 1.", "lists")
        self._steps.labels("1")
        self._switches = self._counter("list_switches", "Steps under another adapter list than the step before.")
        self._step_s = self._histogram("step_duration_seconds", "From the plan of a step to its commit.", _STEP_S)
        self._step_rows = self._histogram("step_rows", "Requests in the batch of a step.", _ROWS)
        self._step_tokens = self._histogram("step_tokens", "Tokens computed in a step.", _STEP_TOKENS)

    def _add_adapter_metrics(self) -> None:
        self._loads = self._counter("adapter_loads", "Adapters loaded into memory while requests are served.")
        self._load_failures = self._counter("adapter_load_failures", "Adapters that could not be loaded.")
        self._evictions = self._counter("adapter_evictions", "Adapters that left memory to make room for others.")
        self._load_s = self._histogram("adapter_load_seconds", "From the begin of a load to its end.", _LOAD_S)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"cohort_{name}", documentation, labels, registry=self._own)

    def _histogram(self, name: str, documentation: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"cohort_{name}", documentation, buckets=bounds, registry=self._own)

    def observe(self, event: Event, adapter_name: AdapterName) -> None:
        """Count one event of a scheduler; `adapter_name` names its adapters."""
        match event:
            case TokenSampled():
                self._observe_token(event, adapter_name)
            case StepDone():
                self._observe_step(event)
            case Admitted():
                self._observe_admitted(event)
            case Finished():
                self._observe_finished(event, adapter_name)
            case Preempted():
                self._preemptions.inc()
            case Shifted():
                self._shifts.inc()
            case Paused():
                self._pauses.inc()
            case Resumed():
                self._queue_s.observe(event.queue_s)

    def observe_residency(self, event: ResidencyEvent) -> None:
        """Count one event of adapters' memory."""
        match event:
            case AdapterLoaded():
                self._loads.inc()
                self._load_s.observe(event.resident.load_s)
            case AdapterLoadFailed():
                self._load_failures.inc()
            case AdapterDropped():
                self._evictions.inc(event.is_eviction)

    def count_response_query(self, *, is_hit: bool) -> None:
        """Count a look-up in the response cache."""
        self._response_queries.inc()
        self._response_hits.inc(is_hit)

    def _observe_token(self, event: TokenSampled, adapter_name: AdapterName) -> None:
        self._tokens.count(event)
        for adapter, _ in event.key:
            self._adapter_totals.count(adapter_name(adapter), "generated_tokens")

    def _observe_step(self, event: StepDone) -> None:
        self._steps.labels(str(event.num_lists)).inc()
        self._switches.inc(event.is_switch)
        self._step_s.observe(event.duration_s)
        self._step_rows.observe(event.num_rows)
        self._step_tokens.observe(event.num_tokens)

    def _observe_admitted(self, event: Admitted) -> None:
        self._queue_s.observe(event.queue_s)
        self._prefix_queries.inc(event.num_tokens)
        self._prefix_hits.inc(event.num_cached)
        if event.is_first:
            self._prompt_tokens.inc(event.num_tokens)

    def _observe_finished(self, event: Finished, adapter_name: AdapterName) -> None:
        self._finished.labels(event.reason).inc()
        self._e2e.observe(event.now - event.arrived_s)
        self._request_prompt.observe(event.num_prompt)
        self._request_generated.observe(event.num_generated)
        for adapter, _ in event.key:
            self._adapter_totals.count(adapter_name(adapter), "requests_finished")
