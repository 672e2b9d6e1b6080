"""What the server says about itself, over real HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.fakes import N_CTX, NUM_SLOTS, FakeExecutor, Turnstile, fake_engine, fake_settings
from tests.server.live import LiveServer, until


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_is_ok(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models_are_the_base_then_the_adapters(client: httpx.Client, path: str) -> None:
    result = client.get(path).json()
    assert list(result) == ["models", "object", "data"]
    base, *adapters = result["data"]
    assert list(base) == [
        *("id", "aliases", "tags", "object", "created", "owned_by", "max_model_len", "root", "parent", "meta"),
    ]
    assert (base["id"], base["root"], base["parent"], base["max_model_len"]) == ("fake", "fake.gguf", None, N_CTX)
    assert base["meta"] == {
        "n_vocab": 259,
        "n_ctx": N_CTX,
        "n_ctx_train": 1024,
        "n_embd": 8,
        "n_params": 1234,
        "size": 4936,
        "ftype": "F32",
    }
    assert [(item["id"], item["root"], item["parent"]) for item in adapters] == [
        ("adapter0", "adapter0.gguf", "fake"),
        ("adapter1", "adapter1.gguf", "fake"),
    ]
    [model] = result["models"]
    assert (model["name"], model["capabilities"], model["details"]["family"]) == ("fake", ["completion"], "llama")


def test_props_tell_the_setup(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert (props["total_slots"], props["model_path"], props["model_alias"]) == (NUM_SLOTS, "fake.gguf", "fake")
    assert props["default_generation_settings"]["n_ctx"] == N_CTX
    params = props["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["n_predict"]) == (0.8, 40, 8)
    assert params["lora"] == [
        {"id": 0, "name": "adapter0", "scale": 1.0},
        {"id": 1, "name": "adapter1", "scale": 1.0},
    ]
    assert props["chat_template"].startswith("{% for message in messages %}")
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert props["build_info"].startswith("b")


def test_slots_that_were_never_used_show_no_request(client: httpx.Client) -> None:
    slots = client.get("/slots").json()
    assert slots == [
        {"id": slot_id, "n_ctx": N_CTX, "speculative": False, "is_processing": False} for slot_id in range(NUM_SLOTS)
    ]


def test_a_busy_slot_shows_its_request_and_the_effective_list() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        body = {"prompt": "abc", "n_predict": 9, "stream": True, "id_slot": 2, "lora": [{"id": 1, "scale": 0.5}]}
        with client.stream("POST", "/completion", json=body):
            turnstile.let(2)
            turnstile.wait_for_step(3)
            slots = client.get("/slots").json()
            assert [slot["is_processing"] for slot in slots] == [False, False, True, False]
            slot = slots[2]
            assert (slot["n_prompt_tokens"], slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]) == (
                4,
                4,
                0,
            )
            assert slot["params"]["lora"] == [
                {"id": 0, "name": "adapter0", "scale": 0.0},
                {"id": 1, "name": "adapter1", "scale": 0.5},
            ]
            assert slot["params"]["n_predict"] == 9
            assert slot["next_token"] == [{"has_next_token": True, "n_remain": 7, "n_decoded": 2}]
            # A list that comes from the server's scales is shown as well.
            with client.stream("POST", "/completion", json={"prompt": "abc", "stream": True, "id_slot": 6}):
                until(lambda: server.engine.loop.scheduler.num_requests == 2)
                turnstile.open()
        until(lambda: server.is_idle)
        slots = client.get("/slots").json()
        assert not any(slot["is_processing"] for slot in slots)
        assert ["params" in slot for slot in slots] == [False, False, True, False]
        assert (slots[2]["n_prompt_tokens"], len(slots[2]["params"]["lora"])) == (4, 2)
        assert slots[2]["next_token"] == [{"has_next_token": False, "n_remain": -1, "n_decoded": 0}]


def test_no_idle_slot_is_an_error_where_asked_for() -> None:
    turnstile = Turnstile()
    executor = FakeExecutor(turnstile=turnstile)
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:
        assert client.get("/slots?fail_on_no_slot=1").status_code == 200
        with client.stream("POST", "/completion", json={"prompt": ["a"] * NUM_SLOTS, "stream": True}):
            turnstile.wait_for_step(1)
            response = client.get("/slots?fail_on_no_slot=1")
            assert (response.status_code, response.json()["error"]["message"]) == (503, "no slot available")
            assert client.get("/slots").status_code == 200
        turnstile.open()


def test_metrics_are_served_in_the_format_asked_for(client: httpx.Client) -> None:
    client.post("/completion", json={"prompt": "a", "n_predict": 2})
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "cohort_generated_tokens_total" in response.text
    open_metrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")


@pytest.fixture(scope="module")
def closed() -> Iterator[httpx.Client]:
    """A client of a server with slots and metrics switched off, and a model without a chat template."""
    settings = fake_settings().model_copy(update={"slots": False, "metrics": False})
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(), settings, chat_template=None), settings) as server,
        server.client() as client,
    ):
        yield client


@pytest.mark.parametrize("path", ["/slots", "/metrics"])
def test_what_is_switched_off_is_not_supported(closed: httpx.Client, path: str) -> None:
    response = closed.get(path)
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_a_chat_without_a_template_is_not_supported(closed: httpx.Client, path: str) -> None:
    response = closed.post(path, json={"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 501
    assert "--chat-template" in response.json()["error"]["message"]


def test_props_tell_what_is_switched_off(closed: httpx.Client) -> None:
    props = closed.get("/props").json()
    assert (props["endpoint_slots"], props["endpoint_metrics"], props["chat_template"]) == (False, False, "")


def test_props_are_changed_only_where_that_is_enabled_and_then_not_either(client: httpx.Client) -> None:
    response = client.post("/props", json={})
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")
    assert response.json()["error"]["message"].endswith("Start it with `--props`")
    settings = fake_settings().model_copy(update={"props": True})
    with LiveServer(lambda given: fake_engine(FakeExecutor(), given), settings) as server, server.client() as other:
        assert client.get("/props").json()["endpoint_props"] is False
        assert other.get("/props").json()["endpoint_props"] is True
        assert other.post("/props", json={"temperature": 5}).json() == {"success": True}
