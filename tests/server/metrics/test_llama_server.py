"""What llama-server's dashboards read: names and types as it has them, rates since the scrape before."""

import pytest

from scheduler.batch import Sample
from scheduler.events import Admitted, Event, Finished, FinishReason, StepDone, TokenSampled
from server.metrics.llama_server import LlamaServerCollector
from tests.server.fakes import FakeExecutor, fake_engine
from tests.server.live import LiveServer


def admitted(now: float, *, num_cached: int = 0, is_first: bool = True) -> Event:
    """Request 0, of ten tokens, gets a slot."""
    return Admitted(0, (), 0, num_tokens=10, num_cached=num_cached, is_first=is_first, queue_s=0.0, now=now)


def sampled(index: int, now: float, gap_s: float) -> Event:
    """Request 0 gets a token."""
    return TokenSampled(0, (), index, Sample(0, 7), gap_s=gap_s, now=now)


def values(collector: LlamaServerCollector) -> dict[str, float]:
    """What a scrape finds."""
    return {sample.name: sample.value for family in collector.collect() for sample in family.samples}


def test_prompts_count_from_the_slot_to_the_first_token_and_answers_between_tokens() -> None:
    collector = LlamaServerCollector()
    meter = collector.meter()
    for event in (admitted(100, num_cached=4), sampled(0, 102, 50), sampled(1, 103, 1), sampled(2, 105, 2)):
        meter.observe(event)
    found = values(collector)
    assert (found["llamacpp:prompt_tokens_total"], found["llamacpp:prompt_seconds_total"]) == (6, 2)
    assert found["llamacpp:tokens_predicted_seconds_total"] == 3
    assert found["llamacpp:prompt_tokens_seconds"] == 3
    assert found["llamacpp:predicted_tokens_seconds"] == pytest.approx(2 / 3)


def test_rates_are_those_since_the_scrape_before() -> None:
    collector = LlamaServerCollector()
    meter = collector.meter()
    for event in (admitted(0), sampled(0, 1, 1), sampled(1, 2, 1)):
        meter.observe(event)
    assert values(collector)["llamacpp:predicted_tokens_seconds"] == 1
    assert values(collector)["llamacpp:predicted_tokens_seconds"] == 0
    meter.observe(sampled(2, 6, 4))
    found = values(collector)
    assert (found["llamacpp:predicted_tokens_seconds"], found["llamacpp:prompt_tokens_seconds"]) == (0.25, 0)


def test_a_request_that_ends_or_begins_again_without_a_token_is_no_prompt() -> None:
    collector = LlamaServerCollector()
    meter = collector.meter()
    meter.observe(admitted(0))
    meter.observe(Finished(0, (), FinishReason.ABORT, "", 10, 0, 0, arrived_s=0, now=1))
    meter.observe(admitted(2, is_first=False))
    meter.observe(sampled(0, 3, 1))
    found = values(collector)
    assert (found["llamacpp:prompt_tokens_total"], found["llamacpp:n_tokens_max"]) == (0, 10)


def test_a_prompt_that_is_embedded_counts_until_then() -> None:
    collector = LlamaServerCollector()
    meter = collector.meter()
    meter.observe(admitted(0, num_cached=3))
    meter.observe(Finished(0, (), FinishReason.EMBEDDED, "", 10, 0, 3, arrived_s=0, now=2))
    found = values(collector)
    assert (found["llamacpp:prompt_tokens_total"], found["llamacpp:prompt_seconds_total"]) == (7, 2)


def test_busy_slots_are_the_rows_of_a_step_on_average() -> None:
    collector = LlamaServerCollector()
    assert values(collector)["llamacpp:n_busy_slots_per_decode"] == 0
    for step_id, num_rows in enumerate((1, 4)):
        collector.meter().observe(StepDone(step_id, (), num_rows, 0, num_rows, 1, 1, False, duration_s=1, now=step_id))
    assert values(collector)["llamacpp:n_busy_slots_per_decode"] == 2.5


def test_a_scrape_has_llama_servers_names_types_and_header() -> None:
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as client:
        answer = client.post("/completion", json={"prompt": "abc", "n_predict": 5}).json()
        response = client.get("/metrics")
        openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    [started] = [value for name, value in response.headers.raw if name == b"Process-Start-Time-Unix"]
    assert int(started) > 1_000_000_000
    assert "# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 9.0\n" in response.text
    assert "# TYPE llamacpp:n_tokens_max gauge\n" in openmetrics.text
    for name, kind in _FAMILIES:
        assert f"# HELP llamacpp:{name} " in response.text
        assert f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} " in response.text
    assert f"\nllamacpp:prompt_tokens_total {float(answer['timings']['prompt_n'])}\n" in response.text


_FAMILIES = (
    ("prompt_tokens_total", "counter"),
    ("prompt_tokens_cached_total", "counter"),
    ("prompt_seconds_total", "counter"),
    ("tokens_predicted_total", "counter"),
    ("tokens_predicted_seconds_total", "counter"),
    ("n_decode_total", "counter"),
    ("n_tokens_max", "counter"),
    ("spec_decode_num_draft_tokens_total", "counter"),
    ("spec_decode_num_accepted_tokens_total", "counter"),
    ("spec_decode_num_drafts_total", "counter"),
    ("prompt_tokens_seconds", "gauge"),
    ("predicted_tokens_seconds", "gauge"),
    ("requests_processing", "gauge"),
    ("requests_deferred", "gauge"),
    ("n_busy_slots_per_decode", "gauge"),
)
