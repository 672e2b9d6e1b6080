"""The families that llama-server counts and nobody else: `llamacpp:…`, with its names, types and meanings, for the
dashboards that are made for it. Those that are series of ours under another name stand in `aliases.py`.

Its two rates are averages since the scrape before, so they are made once for each scrape."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler.events import Admitted, Event, Finished, FinishReason, StepDone, TokenSampled

HIGH_WATER_MARK = "llamacpp:n_tokens_max"
"""A gauge to Prometheus, which llama-server calls a counter."""
_DRAFTED = ("num_draft_tokens", "num_accepted_tokens", "num_drafts")
"""Of speculative decoding, which there is none of here."""


class Rate:
    """Tokens and the seconds that they took, in all and since the scrape before."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.seconds = 0.0
        self._scraped = (0, 0.0)

    def add(self, num_tokens: int, seconds: float) -> None:
        """Count tokens."""
        self.num_tokens += num_tokens
        self.seconds += seconds

    def take(self) -> float:
        """Return the tokens per second since the last call; 0 where there were none."""
        num_tokens, seconds = self.num_tokens - self._scraped[0], self.seconds - self._scraped[1]
        self._scraped = (self.num_tokens, self.seconds)
        return num_tokens / seconds if seconds > 0 else 0.0


class LlamaServerCollector(Collector):
    """The families of one server, whatever models it serves."""

    def __init__(self) -> None:
        self.prompts = Rate()
        """Prompt tokens that were computed, and the time from a slot to the first token or to the embedding."""
        self.answers = Rate()
        """Generated tokens but first ones, which come with the prompt, and the time between them."""
        self.max_tokens = 0
        """Most tokens that a request had, prompt and answer together."""
        self.num_steps = 0
        self.num_rows = 0
        """Requests in the batches of all steps."""

    def meter(self) -> "RequestMeter":
        """Return what counts for one scheduler."""
        return RequestMeter(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they are now; the rates begin anew."""
        yield _counter("prompt_tokens", "Prompt tokens computed, cached ones left out.", self.prompts.num_tokens)
        yield _counter("prompt_seconds", "Seconds from a slot to the first token or embedding.", self.prompts.seconds)
        yield _counter("tokens_predicted_seconds", "Seconds between generated tokens.", self.answers.seconds)
        for name in _DRAFTED:
            yield _counter(f"spec_decode_{name}", "Of speculative decoding: always 0.", 0)
        yield GaugeMetricFamily(HIGH_WATER_MARK, "Most tokens of one request so far.", value=self.max_tokens)
        yield _gauge("prompt_tokens_seconds", "Prompt tokens a second since the last scrape.", self.prompts.take())
        yield _gauge(
            "predicted_tokens_seconds", "Tokens generated a second since the last scrape.", self.answers.take()
        )
        busy = self.num_rows / self.num_steps if self.num_steps else 0.0
        yield _gauge("n_busy_slots_per_decode", "Requests in the batch of a step, on average.", busy)


class RequestMeter:
    """Follows the requests of one scheduler, whose ids are its own."""

    def __init__(self, totals: LlamaServerCollector) -> None:
        self._totals = totals
        self._prompts: dict[int, tuple[float, int]] = {}
        """Of a request without a token: when it got its slot, and how much of its prompt was to be computed."""

    def observe(self, event: Event) -> None:
        """Count one event."""
        match event:
            case TokenSampled():
                if event.index:
                    self._totals.answers.add(1, event.gap_s)
                elif begun := self._prompts.pop(event.request_id, None):
                    self._totals.prompts.add(begun[1], event.now - begun[0])
            case Admitted(is_first=True):
                self._prompts[event.request_id] = (event.now, event.num_tokens - event.num_cached)
            case StepDone():
                self._totals.num_steps += 1
                self._totals.num_rows += event.num_rows
            case Finished():
                begun = self._prompts.pop(event.request_id, None)
                if begun and event.reason is FinishReason.EMBEDDED:
                    self._totals.prompts.add(begun[1], event.now - begun[0])
                self._totals.max_tokens = max(self._totals.max_tokens, event.num_prompt + event.num_generated)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"llamacpp:{name}", documentation, value=value)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"llamacpp:{name}", documentation, value=value)
