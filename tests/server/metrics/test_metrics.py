"""GET /metrics over real HTTP, read by prometheus_client's own parser, and the dashboard's queries against that
scrape."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import promql_parser
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.server.fakes import FakeExecutor, Turnstile, fake_engine
from tests.server.live import LiveServer, until

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "dashboard.json"
BOTH = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.25}]


def scrape(client: httpx.Client) -> list[Sample]:
    """Return every sample of a scrape."""
    text = client.get("/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    """The one sample of that name and those labels."""
    [found] = [sample.value for sample in samples if sample.name == name and sample.labels == labels]
    return found


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    """A client of a server that has counted nothing yet."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as opened:
        yield opened


@pytest.fixture
def turnstile() -> Turnstile:
    """Holds the executor back."""
    return Turnstile()


@pytest.fixture
def held(turnstile: Turnstile) -> Iterator[LiveServer]:
    """A server whose steps wait for the turnstile."""
    with LiveServer(lambda settings: fake_engine(FakeExecutor(turnstile=turnstile), settings)) as server:
        yield server
        turnstile.open()


def test_tokens_requests_and_latencies_are_counted(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "abc", "n_predict": 5, "lora": BOTH})
    client.post("/completion", json={"prompt": "ab", "n_predict": 2, "lora": [{"id": 0, "scale": 0}]})
    samples = scrape(client)
    assert value(samples, "cohort_generated_tokens_total") == 7
    assert value(samples, "cohort_prompt_tokens_total") == 7  # with a BOS each
    assert value(samples, "cohort_requests_finished_total", reason="limit") == 2
    assert value(samples, "cohort_requests_finished_total", reason="abort") == 0
    assert value(samples, "cohort_time_to_first_token_seconds_count") == 2
    assert value(samples, "cohort_inter_token_latency_seconds_count") == 5
    assert value(samples, "cohort_request_duration_seconds_count") == 2
    assert value(samples, "cohort_queue_time_seconds_count") == 2
    assert value(samples, "cohort_request_generated_tokens_sum") == 7


def test_a_token_under_a_list_counts_for_each_of_its_adapters(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "abc", "n_predict": 5, "lora": BOTH})
    client.post("/completion", json={"prompt": "abc", "n_predict": 2, "lora": [{"id": 1, "scale": 1}]})
    samples = scrape(client)
    assert value(samples, "cohort_adapter_generated_tokens_total", adapter="adapter0") == 5
    assert value(samples, "cohort_adapter_generated_tokens_total", adapter="adapter1") == 7
    assert value(samples, "cohort_adapter_requests_finished_total", adapter="adapter1") == 2


def test_steps_count_rows_tokens_and_list_switches(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "abc", "n_predict": 3, "lora": BOTH})
    client.post("/completion", json={"prompt": "abc", "n_predict": 1, "lora": [{"id": 1, "scale": 1}]})
    samples = scrape(client)
    assert value(samples, "cohort_steps_total", lists="1") == 4
    assert value(samples, "cohort_list_switches_total") == 1
    assert value(samples, "cohort_step_rows_sum") == 4
    assert value(samples, "cohort_step_tokens_sum") == 4 + 1 + 1 + 4
    assert value(samples, "cohort_step_duration_seconds_count") == 4


def test_prefix_hits_are_counted_in_tokens(client: httpx.Client) -> None:
    prompt = "x" * 39  # and a BOS: two full blocks of 16, and 8 tokens
    for _ in range(2):
        client.post("/completion", json={"prompt": prompt, "n_predict": 1})
    samples = scrape(client)
    assert value(samples, "cohort_prefix_cache_queries_total") == 80
    assert value(samples, "cohort_prefix_cache_hits_total") == 32
    assert value(samples, "cohort_kv_blocks_cached") > 0


def post_and_leave(server: LiveServer, lora: list[dict[str, float]], stack: list[httpx.Response]) -> None:
    """Begin a streamed request and keep it open."""
    client = server.client()
    body = {"prompt": "abc", "n_predict": 100, "stream": True, "lora": lora}
    stack.append(client.send(client.build_request("POST", "/completion", json=body), stream=True))


def test_running_and_waiting_are_read_at_scrape_time(held: LiveServer, turnstile: Turnstile) -> None:
    num_slots = held.engine.loop.scheduler.limits.num_slots
    responses: list[httpx.Response] = []
    for _ in range(num_slots):
        post_and_leave(held, [{"id": 0, "scale": 1}], responses)
    until(lambda: held.engine.loop.scheduler.num_requests == num_slots)
    turnstile.let(2)
    until(lambda: held.num_free_slots == 0)
    post_and_leave(held, [{"id": 1, "scale": 2}], responses)
    with held.client() as client:
        samples = scrape(client)
    assert value(samples, "cohort_requests_running") == num_slots
    assert value(samples, "cohort_requests_waiting") == 1
    assert value(samples, "cohort_requests_paused") == 0
    assert value(samples, "cohort_longest_list_wait_seconds") > 0
    assert value(samples, "cohort_cohorts_active") == 1
    assert value(samples, "cohort_list_requests_running", list="adapter0:1") == num_slots
    assert value(samples, "cohort_adapter_requests_running", adapter="adapter0") == num_slots
    assert value(samples, "cohort_adapter_requests_waiting", adapter="adapter0") == 0
    assert value(samples, "cohort_adapter_requests_waiting", adapter="adapter1") == 1
    assert 0 < value(samples, "cohort_kv_cache_usage_ratio") <= 1
    [info] = [sample for sample in samples if sample.name == "vllm:lora_requests_info"]
    assert info.labels["running_lora_adapters"] == "adapter0"
    assert info.labels["waiting_lora_adapters"] == "adapter1"
    for response in responses:
        response.close()
    turnstile.open()
    until(lambda: held.is_idle)
    with held.client() as client:
        samples = scrape(client)
    assert value(samples, "cohort_requests_running") == 0
    assert value(samples, "cohort_longest_list_wait_seconds") == 0
    assert value(samples, "cohort_adapter_loaded", adapter="adapter1") == 1
    assert not [sample for sample in samples if sample.name == "cohort_list_requests_running"]
    assert value(samples, "cohort_requests_finished_total", reason="abort") == num_slots + 1


def test_vllms_and_llama_servers_names_repeat_ours(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "abc", "n_predict": 5})
    samples = scrape(client)
    labels = {"model_name": "fake", "engine": "0"}
    assert value(samples, "vllm:generation_tokens_total", **labels) == 5
    assert value(samples, "vllm:time_to_first_token_seconds_count", **labels) == 1
    assert value(samples, "vllm:time_to_first_token_seconds_bucket", le="+Inf", **labels) == 1
    assert value(samples, "vllm:request_success_total", finished_reason="length", **labels) == 1
    assert value(samples, "vllm:request_success_total", finished_reason="stop", **labels) == 0
    assert value(samples, "vllm:kv_cache_usage_perc", **labels) == 0
    assert value(samples, "llamacpp:tokens_predicted_total") == 5
    assert value(samples, "llamacpp:n_decode_total") == value(samples, "cohort_steps_total", lists="1")


def test_the_exposition_is_openmetrics_where_it_is_asked_for(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "abc", "n_predict": 1})
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    response = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(response.text)}  # type: ignore[no-untyped-call]
    assert "cohort_generated_tokens" in names


def dashboard_queries() -> list[str]:
    """Every query of the dashboard, with Grafana's variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [
        query.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*") for query in queries
    ]


def selectors(expression: object) -> Iterator[promql_parser.VectorSelector]:
    """Yield the vector selectors in a parsed query."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    elif isinstance(expression, promql_parser.MatrixSelector):
        yield expression.vector_selector
    elif isinstance(expression, promql_parser.BinaryExpr):
        yield from selectors(expression.lhs)
        yield from selectors(expression.rhs)
    elif isinstance(expression, promql_parser.Call):
        for argument in expression.args:
            yield from selectors(argument)
    elif isinstance(expression, promql_parser.AggregateExpr | promql_parser.ParenExpr):
        yield from selectors(expression.expr)
    else:
        assert isinstance(expression, promql_parser.NumberLiteral), expression


@pytest.fixture(scope="module")
def busy_samples() -> Iterator[list[Sample]]:
    """A scrape of a server that is in the middle of a mixed request."""
    turnstile, responses = Turnstile(), list[httpx.Response]()
    with LiveServer(lambda settings: fake_engine(FakeExecutor(turnstile=turnstile), settings)) as server:
        post_and_leave(server, BOTH, responses)
        turnstile.let(3)
        turnstile.wait_for_step(4)
        with server.client() as client:
            yield scrape(client)
        responses[0].close()
        turnstile.open()


@pytest.mark.parametrize("query", dashboard_queries())
def test_every_query_of_the_dashboard_finds_series(busy_samples: list[Sample], query: str) -> None:
    found = list(selectors(promql_parser.parse(query)))
    assert found
    for selector in found:
        own = [matcher for matcher in selector.matchers.matchers if matcher.name not in ("job", "instance")]
        assert not own, "the test resolves names only; teach it this matcher"
        assert any(sample.name == selector.name for sample in busy_samples), selector.name
