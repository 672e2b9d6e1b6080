"""Embeddings over HTTP: the forms of bodies and answers, adapter lists, and the life of a request for many."""

import base64
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from server.assembly import load_engine
from server.settings import Settings
from tests.model.tiny import make_model
from tests.server.fakes import (
    BOS,
    N_CTX,
    NUM_SLOTS,
    TIMEOUT_S,
    FakeExecutor,
    Turnstile,
    current_key,
    fake_engine,
    fake_limits,
    fake_settings,
    key_of,
    letter,
)
from tests.server.live import LiveServer, until


def state(token: int, position: int, first: int) -> list[float]:
    """What the fake model makes of a token."""
    return [token, position, first, 1]


def unit(vector: list[float]) -> list[float]:
    return [float(x) for x in (np.array(vector) / np.linalg.norm(vector)).astype(np.float32)]


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


def test_openais_form(client: httpx.Client, server: LiveServer) -> None:
    first = letter(current_key(server.engine), 0)
    response = client.post("/v1/embeddings", json={"model": "text-embedding-3-small", "input": "abc"})
    assert response.json() == {
        "model": "text-embedding-3-small",
        "object": "list",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
        "data": [{"embedding": unit(state(ord("c"), 3, first)), "index": 0, "object": "embedding"}],
    }
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert client.post("/v1/embeddings", json={"input": "abc"}).json()["model"] == "fake"


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llama_servers_form_has_a_vector_for_each_token(client: httpx.Client, server: LiveServer, path: str) -> None:
    first = letter(current_key(server.engine), 0)
    for field in ("input", "content"):
        answer = client.post(path, json={field: ["ab", "c"]}).json()
        assert answer == [
            {"index": 0, "embedding": [state(BOS, 0, first), state(97, 1, first), state(98, 2, first)]},
            {"index": 1, "embedding": [state(BOS, 0, first), state(99, 1, first)]},
        ]


def test_content_on_openais_route_is_answered_in_llama_servers_form(client: httpx.Client) -> None:
    native = client.post("/embedding", json={"content": "abc"}).json()
    assert client.post("/v1/embeddings", json={"content": "abc"}).json() == native
    both = client.post("/v1/embeddings", json={"content": "abc", "input": "abc"}).json()
    assert both["object"] == "list"


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("", [[BOS]]),
        ("ab", [[BOS, 97, 98]]),
        ([12, 34], [[12, 34]]),
        ([12, "b", 34], [[12, 98, 34]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        (["a", [12, 34]], [[BOS, 97], [12, 34]]),
        ([[12, "b"], {"prompt_string": "c"}], [[12, 98], [BOS, 99]]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [[BOS, 97, 98]]),
    ],
)
def test_inputs_in_all_forms(client: httpx.Client, value: object, prompts: list[list[int]]) -> None:
    answer = client.post("/embedding", json={"input": value}).json()
    assert [[int(row[0]) for row in item["embedding"]] for item in answer] == prompts


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": []}, '"input" must not be empty'),
        ({"input": ["a", []]}, "Input content cannot be empty"),
        ({"input": 5}, "Field 'input': must be a string"),
        ({"input": ["a", None]}, "Field 'input[1]': must be a string"),
        ({"input": [97, 999]}, "Field 'input[1]': must be a token id"),
        ({"input": {"content": "a"}}, "Field 'input.content': must be an array of parts, but is string"),
        ({"input": {"content": [{"type": "image_url"}]}}, "Field 'input.content[0].type'"),
        ({"input": "a", "encoding_format": "hex"}, "Field 'encoding_format': must be"),
        ({"input": "a", "dimensions": 4}, "Field 'dimensions': only the model's 8 is supported, but got 4"),
        ({"input": "a", "embd_normalize": -2}, "Field 'embd_normalize': Value must be between -1"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "Field 'truncate_prompt_tokens'"),
        ({"input": "a", "lora": [{"id": 7}]}, "Field 'lora[0].id'"),
        ({"input": ["a", "b" * N_CTX]}, f"request ({N_CTX + 1} tokens) exceeds the available context size"),
    ],
)
def test_a_wrong_body_is_refused(client: httpx.Client, body: dict[str, object], message: str) -> None:
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


def test_what_only_one_form_can_honour_is_refused_in_the_other(client: httpx.Client) -> None:
    for path, body in (
        ("/embedding", {"input": "a", "encoding_format": "base64"}),
        ("/embedding", {"input": "a", "embd_normalize": 2}),
        ("/v1/embeddings", {"content": "a", "embd_normalize": 2}),
    ):
        assert client.post(path, json=body).status_code == 400
    assert client.post("/embedding", json={"input": "a", "embd_normalize": -1}).status_code == 200


def test_base64_is_the_same_vector(client: httpx.Client) -> None:
    [plain] = vectors(client.post("/v1/embeddings", json={"input": "abc", "dimensions": 8}))
    [item] = client.post("/v1/embeddings", json={"input": "abc", "encoding_format": "base64"}).json()["data"]
    assert item["encoding_format"] == "base64"
    assert np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() == plain


@pytest.mark.parametrize(
    ("norm", "divisor"), [(-1, 1), (0, 99 / 32760), (1, 99 + 1 + 1 + 97), (3, (99**3 + 97**3 + 2) ** (1 / 3))]
)
def test_vectors_are_normalised_as_asked(client: httpx.Client, norm: int, divisor: float) -> None:
    body = {"input": [99, 99], "embd_normalize": norm, "model": "fake:adapter0"}
    [got] = vectors(client.post("/v1/embeddings", json=body))
    first = got[2] / got[3]
    wanted = np.array([99, 1, first, 1])
    expected = {-1: 1, 0: max(99, first) / 32760, 1: wanted.sum(), 3: (wanted**3).sum() ** (1 / 3)}[norm]
    np.testing.assert_allclose(got, wanted / expected, rtol=1e-6)


def test_the_adapter_list_is_chosen_as_everywhere(client: httpx.Client, server: LiveServer) -> None:
    for fields in (
        {},
        {"lora": [{"id": 1, "scale": 0.5}]},
        {"lora": [{"id": 0, "scale": 0}]},
        {"model": "adapter1"},
        {"model": "fake:adapter0"},
    ):
        body = {"input": "a", "embd_normalize": -1, **fields}
        [got] = vectors(client.post("/v1/embeddings", json=body))
        lora, model = body.get("lora"), fields.get("model")
        assert got[2] == letter(key_of(server.engine, lora, model if isinstance(model, str) else None), 0)
    response = client.post("/v1/embeddings", json={"input": "a", "model": "fake:nobody"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def settings_with(**changes: object) -> Settings:
    return fake_settings().model_copy(update=changes)


def served(executor: FakeExecutor, **changes: object) -> LiveServer:
    settings = settings_with(**changes)
    return LiveServer(lambda given: fake_engine(executor, given), settings)


def test_pooling_is_the_settings() -> None:
    for pooling, wanted in (("mean", [(256 + 97 + 98) / 3, 1]), ("cls", [256, 0]), ("last", [98, 2])):
        with served(FakeExecutor(), pooling=pooling) as server, server.client() as client:
            body = {"input": "ab", "embd_normalize": -1}
            [openai] = vectors(client.post("/v1/embeddings", json=body))
            assert openai[:2] == pytest.approx(wanted)
            assert client.post("/embedding", json=body).json() == [{"index": 0, "embedding": [openai]}]


def test_what_is_not_pooled_has_no_form_in_openais_api() -> None:
    with served(FakeExecutor(), pooling="none") as server, server.client() as client:
        response = client.post("/v1/embeddings", json={"input": "ab"})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("Pooling type 'none' is not OAI compatible.")
        assert client.post("/v1/embeddings", json={"content": "ab"}).status_code == 200


def test_switched_off_they_are_not_supported() -> None:
    with served(FakeExecutor(), embeddings=False) as server, server.client() as client:
        for path in ("/embedding", "/embeddings", "/v1/embeddings"):
            response = client.post(path, json={"input": "ab"})
            assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_ranking_is_not_supported(client: httpx.Client, path: str) -> None:
    response = client.post(path, json={"query": "a", "documents": ["b"]})
    assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")
    assert response.json()["error"]["message"].startswith("This server does not support reranking")


def test_more_inputs_than_may_wait_take_their_turns() -> None:
    executor = FakeExecutor()
    with LiveServer(lambda given: fake_engine(executor, given, fake_limits(max_waiting=1))) as server:
        inputs = [[number % 256, number // 256] for number in range(300)]
        with server.client() as client:
            got = client.post("/v1/embeddings", json={"input": inputs, "embd_normalize": -1}).json()
        assert [item["embedding"][0] for item in got["data"]] == [number // 256 for number in range(300)]
        assert [item["index"] for item in got["data"]] == list(range(300))
        assert got["usage"] == {"prompt_tokens": 600, "total_tokens": 600}
        assert all(len(batch.rows) <= NUM_SLOTS for batch in executor.batches)
        assert server.is_idle


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    turnstile = Turnstile()
    yield turnstile
    turnstile.open()


def in_thread(client: httpx.Client, path: str, body: dict[str, object], into: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: into.append(client.post(path, json=body)))
    thread.start()
    return thread


def test_a_full_queue_is_told(turnstile: Turnstile) -> None:
    executor = FakeExecutor(turnstile=turnstile)
    answers: list[Any] = []
    with LiveServer(lambda given: fake_engine(executor, given, fake_limits(max_waiting=0))) as server:
        with server.client() as client:
            thread = in_thread(client, "/v1/embeddings", {"input": [[1]] * 40}, answers)
            turnstile.wait_for_step(1)
            refused = client.post("/v1/embeddings", json={"input": "b"})
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            turnstile.open()
            thread.join()
        assert len(vectors(answers[0])) == 40


def test_a_client_that_leaves_frees_everything(turnstile: Turnstile) -> None:
    with served(FakeExecutor(turnstile=turnstile)) as server:
        with server.client() as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/embeddings", json={"input": ["a"] * 100}, timeout=httpx.Timeout(TIMEOUT_S, read=0.2))
        turnstile.open()
        until(lambda: server.is_idle)


def test_a_failed_step_is_an_error() -> None:
    executor = FakeExecutor()
    executor.error = RuntimeError("out of order")
    with served(executor) as server, server.client() as client:
        response = client.post("/v1/embeddings", json={"input": ["a", "b"]})
        assert response.status_code == 500
        assert "out of order" in response.json()["error"]["message"]
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
        assert server.is_idle


def test_time_that_is_over_is_an_error(turnstile: Turnstile) -> None:
    executor = FakeExecutor(turnstile=turnstile)
    with served(executor, request_timeout=0.05) as server, server.client() as client:
        response = client.post("/v1/embeddings", json={"input": "a"})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
        turnstile.open()
        until(lambda: server.is_idle)


def test_they_are_counted(client: httpx.Client) -> None:
    client.post("/v1/embeddings", json={"input": "a"})
    text = client.get("/metrics").text
    [count] = re.findall(r'cohort_requests_finished_total{reason="embedded"} (\S+)', text)
    assert float(count) >= 1


def test_a_real_model_is_embedded_by(tmp_path: Any) -> None:
    oracle = make_model("llama", tmp_path)
    settings = Settings(model=tmp_path, port=0, ctx_size=256, parallel=2, pooling="mean", dtype="float32", threads=1)
    with LiveServer(load_engine, settings) as server, server.client() as client:
        [got] = vectors(client.post("/v1/embeddings", json={"input": [[5, 80, 3, 99]]}))
    states = oracle.model(oracle.dummy_inputs["input_ids"].new_tensor([[5, 80, 3, 99]])).last_hidden_state[0]
    wanted = states.mean(0).detach().numpy()
    np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted), atol=1e-5)
