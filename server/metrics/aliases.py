"""The same series under the names that existing dashboards and gateways read: vLLM's and llama-server's.

A row of the table repeats one of our families under another name. Two families have no counterpart of ours and are made
here: `vllm:lora_requests_info` and `vllm:cache_config_info`, which the Kubernetes Gateway API inference extension
reads."""

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.batch import BLOCK_SIZE
from server.metrics.adapters import resident_names, running_by_adapter, waiting_by_adapter
from server.metrics.state import MeasuredModel

ALIASES = {
    "vllm:num_requests_running": "cohort_requests_running",
    "vllm:num_requests_waiting": "cohort_requests_waiting",
    "vllm:kv_cache_usage_perc": "cohort_kv_cache_usage_ratio",
    "vllm:num_preemptions": "cohort_preemptions",
    "vllm:prompt_tokens": "cohort_prompt_tokens",
    "vllm:generation_tokens": "cohort_generated_tokens",
    "vllm:prefix_cache_queries": "cohort_prefix_cache_queries",
    "vllm:prefix_cache_hits": "cohort_prefix_cache_hits",
    "vllm:request_success": "cohort_requests_finished",
    "vllm:time_to_first_token_seconds": "cohort_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "cohort_inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds": "cohort_request_duration_seconds",
    "vllm:request_queue_time_seconds": "cohort_queue_time_seconds",
    "vllm:request_prompt_tokens": "cohort_request_prompt_tokens",
    "vllm:request_generation_tokens": "cohort_request_generated_tokens",
    "vllm:iteration_tokens_total": "cohort_step_tokens",
    "llamacpp:requests_processing": "cohort_requests_running",
    "llamacpp:requests_deferred": "cohort_requests_waiting",
    "llamacpp:tokens_predicted": "cohort_generated_tokens",
    "llamacpp:prompt_tokens_cached": "cohort_prefix_cache_hits",
    "llamacpp:n_decode": "cohort_steps",
}

# vLLM's words for why a request ended; ours are llama-server's.
_VLLM_REASONS = {
    "eos": "stop",
    "word": "stop",
    "limit": "length",
    "embedded": "stop",
    "abort": "abort",
    "timeout": "abort",
    "unanswerable": "error",
    "error": "error",
}


class AliasCollector(Collector):
    """Repeats the families of `own` under their aliases; vLLM's carry its labels `model_name` and `engine`."""

    def __init__(self, own: CollectorRegistry, models: Sequence[MeasuredModel]) -> None:
        """`models` is read at each scrape; the last one, the newest, gives its name to all series."""
        self._own = own
        self._models = models
        self._lora_labels: dict[str, str] = {}
        self._lora_labels_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """Yield each alias with the present values of its source."""
        if not self._models:
            return
        vllm_labels = {"model_name": self._models[-1].name, "engine": "0"}
        sources = {family.name: family for family in self._own.collect()}
        for alias, name in ALIASES.items():
            yield _renamed(sources[name], alias, vllm_labels if alias.startswith("vllm:") else {})
        yield self._cache_config(vllm_labels)
        yield self._lora_requests()

    def _cache_config(self, vllm_labels: dict[str, str]) -> Metric:
        num_blocks = self._models[-1].scheduler.kv.blocks.num_blocks
        labels = {"block_size": str(BLOCK_SIZE), "num_gpu_blocks": str(num_blocks), **vllm_labels}
        family = GaugeMetricFamily("vllm:cache_config_info", "The shape of the KV cache.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _lora_requests(self) -> Metric:
        """Running: adapters that some running request uses; waiting: those that only waiting requests use. `max_lora`
        is how many may be in memory, or are where any number may. The value is when this was first so.
        """
        running = running_by_adapter(self._models).keys()
        waiting = waiting_by_adapter(self._models).keys() - running
        labels = {
            "max_lora": str(self._models[-1].max_loras or len(resident_names(self._models))),
            "running_lora_adapters": ",".join(sorted(running)),
            "waiting_lora_adapters": ",".join(sorted(waiting)),
        }
        if labels != self._lora_labels:
            self._lora_labels, self._lora_labels_s = labels, time.time()
        family = GaugeMetricFamily(
            "vllm:lora_requests_info", "Adapters in use; the time of the last change as value.", labels=list(labels)
        )
        family.add_metric(list(labels.values()), self._lora_labels_s)
        return family


def _renamed(source: Metric, name: str, labels: dict[str, str]) -> Metric:
    family = Metric(name, source.documentation, source.type)
    merged: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in source.samples:
        if sample.name.endswith("_created"):
            continue
        own_labels = dict(sample.labels)
        if name.startswith("vllm:") and "reason" in own_labels:
            own_labels = {"finished_reason": _VLLM_REASONS[own_labels["reason"]]}
        own_labels.pop("lists", None)
        place = (name + sample.name.removeprefix(source.name), tuple({**labels, **own_labels}.items()))
        merged[place] = merged.get(place, 0.0) + sample.value
    for (sample_name, pairs), value in merged.items():
        family.add_sample(sample_name, dict(pairs), value)
    return family
