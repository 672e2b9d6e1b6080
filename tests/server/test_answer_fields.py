"""Fields that say what an answer holds beside its text, over HTTP: `echo`, `best_of`, `verbose`, `return_progress`,
`sse_ping_interval`."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scheduler.batch import BLOCK_SIZE, Row, Sample
from scheduler.cohort import CohortKey
from tests.server.fakes import BODIES, BOS, FakeExecutor, Turnstile, fake_engine, fake_settings
from tests.server.live import LiveServer, frames, until

OPENAI = ["/v1/completions", "/v1/chat/completions"]


class Ranked(FakeExecutor):
    """Says the letter of each choice's seed, the less likely the further from c."""

    def sample(self, key: CohortKey, row: Row) -> Sample:
        """Return the same token again and again."""
        assert row.sampling is not None
        token_id = ord("a") + row.sampling.seed % 26
        logprob = None if row.sampling.num_logprobs is None else -1.0 - abs(token_id - ord("c"))
        return Sample(row.request_id, token_id, logprob)


@pytest.fixture(scope="module")
def ranked() -> Iterator[httpx.Client]:
    with LiveServer(lambda settings: fake_engine(Ranked(), settings)) as server, server.client() as opened:
        yield opened


# best_of.


def test_the_best_choices_are_given_the_best_first(ranked: httpx.Client) -> None:
    body = {"prompt": "x", "best_of": 4, "n": 2, "max_tokens": 3, "seed": 0}
    answer = ranked.post("/v1/completions", json=body).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "ccc"), (1, "bbb")]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 12
    chat = ranked.post("/v1/chat/completions", json=BODIES[OPENAI[1]] | {"best_of": 3, "max_tokens": 1, "seed": 0})
    assert [choice["message"]["content"] for choice in chat.json()["choices"]] == ["c"]


def test_each_prompt_has_its_best(ranked: httpx.Client) -> None:
    body = {"prompt": ["x", "y"], "best_of": 3, "n_predict": 1, "seed": 1, "n_probs": 1}
    results = ranked.post("/completion", json=body).json()
    assert [(result["index"], result["content"], result["prompt"]) for result in results] == [
        (0, "c", "<s>x"),
        (1, "c", "<s>y"),
    ]
    alone = ranked.post("/completion", json=body | {"prompt": "x"}).json()
    assert (alone["content"], len(alone["completion_probabilities"])) == ("c", 1)


# echo.


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [("abc", ["abc"]), ([[97, BOS], ["é", 98]], ["a<s>", "éb"])],
)
def test_echo_begins_the_text_with_the_prompt(client: httpx.Client, prompt: Any, texts: list[str]) -> None:
    body = {"prompt": prompt, "max_tokens": 2, "lora": [{"id": 0, "scale": 0}], "echo": True, "n": 2}
    answer = client.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == [text + "ab" for text in texts for _ in range(2)]
    streamed: dict[int, str] = {}
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        for chunk in frames(response):
            for choice in chunk["choices"]:
                streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
    assert [streamed[index] for index in sorted(streamed)] == [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/completion", {}, "is supported by /v1/completions only"),
        ("/v1/chat/completions", {}, "is not supported; only false is accepted, but got true"),
    ],
)
def test_echo_elsewhere_is_refused(client: httpx.Client, path: str, fields: dict[str, Any], message: str) -> None:
    response = client.post(path, json=BODIES[path] | {"echo": True} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"Field 'echo': {message}")


# verbose.


@pytest.mark.parametrize("path", OPENAI)
def test_verbose_adds_the_native_answer(client: httpx.Client, path: str) -> None:
    body = BODIES[path] | {"max_tokens": 2, "verbose": True, "return_tokens": True, "lora": [{"id": 0, "scale": 0}]}
    native = client.post(path, json=body).json()["__verbose"]
    assert (native["content"], native["tokens"], native["stop_type"]) == ("ab", [97, 98], "limit")
    assert native["generation_settings"]["n_predict"] == 2
    both = client.post(path, json=body | {"n": 2}).json()
    assert [item["index"] for item in both["__verbose"]] == [0, 1]
    chosen = client.post(path, json=body | {"response_fields": ["tokens_predicted"]}).json()
    assert chosen["__verbose"] == {"tokens_predicted": 2}
    assert "__verbose" not in client.post(path, json=BODIES[path]).json()


@pytest.mark.parametrize("path", OPENAI)
def test_a_verbose_stream_ends_with_the_native_answer(client: httpx.Client, path: str) -> None:
    body = BODIES[path] | {"max_tokens": 2, "verbose": True, "stream": True}
    with client.stream("POST", path, json=body) as response:
        natives = [chunk["__verbose"] for chunk in frames(response) if "__verbose" in chunk]
    assert [native["stop"] for native in natives] == ([False, False, True] if path == OPENAI[0] else [True])
    assert natives[-1]["tokens_predicted"] == 2


def test_a_server_started_verbose_adds_it_unless_told_not_to() -> None:
    settings = fake_settings().model_copy(update={"verbose": True})
    load = lambda settings: fake_engine(FakeExecutor(), settings)  # noqa: E731
    with LiveServer(load, settings) as server, server.client() as client:
        for path in OPENAI:
            assert client.post(path, json=BODIES[path]).json()["__verbose"]["stop"]
            assert "__verbose" not in client.post(path, json=BODIES[path] | {"verbose": False}).json()


# return_progress.


@pytest.mark.parametrize("path", ["/completion", *OPENAI])
def test_a_stream_tells_how_much_of_its_prompt_is_computed(client: httpx.Client, path: str) -> None:
    text = (path * 20)[:150]  # in steps of 64 tokens
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    body = prompt | {"max_tokens": 2, "stream": True, "return_progress": True}
    for is_again in (False, True):
        with client.stream("POST", path, json=body) as response:
            sent = list(frames(response))
        told = [chunk for chunk in sent if "prompt_progress" in chunk]
        progress = [chunk["prompt_progress"] for chunk in told]
        [total] = {item["total"] for item in progress}
        [cached] = {item["cache"] for item in progress}
        assert cached == ((total - 1) // BLOCK_SIZE * BLOCK_SIZE if is_again else 0)
        assert [item["processed"] for item in progress] == ([cached, total] if is_again else [0, 64, 128, total])
        assert all(item["time_ms"] >= 0 for item in progress)
        opening = 1 if "chat" in path else 0
        assert sent[opening : opening + len(told)] == told
    with client.stream("POST", path, json=body | {"return_progress": False}) as response:
        assert not any("prompt_progress" in chunk for chunk in frames(response))
    assert client.post(path, json=body | {"stream": False}).status_code == 200


@pytest.mark.parametrize("path", ["/completion", *OPENAI])
def test_timings_beside_progress_are_those_of_the_prompt_so_far(client: httpx.Client, path: str) -> None:
    text = (path * 20)[:150]
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    asked = {"return_progress": True, "timings_per_token": True, "cache_prompt": False}
    with client.stream("POST", path, json=prompt | asked | {"max_tokens": 2, "stream": True}) as response:
        told = [chunk for chunk in frames(response) if "prompt_progress" in chunk]
    times = [chunk["timings"] for chunk in told]
    assert [time["prompt_n"] for time in times] == [chunk["prompt_progress"]["processed"] for chunk in told]
    assert [time["prompt_ms"] for time in times] == [chunk["prompt_progress"]["time_ms"] for chunk in told]
    assert times[0]["prompt_ms"] == 0
    assert all((time["predicted_n"], time["predicted_ms"]) == (0, 0) for time in times)


# sse_ping_interval.


@pytest.mark.parametrize("path", ["/completion", "/v1/messages"])
def test_a_silent_stream_sends_comments(path: str) -> None:
    turnstile = Turnstile()
    body = BODIES.get(path, BODIES[OPENAI[1]]) | {"max_tokens": 3, "stream": True, "sse_ping_interval": 1}
    with LiveServer(lambda settings: fake_engine(FakeExecutor(turnstile=turnstile), settings)) as server:
        with server.client() as client, client.stream("POST", path, json=body) as response:
            lines = response.iter_lines()
            assert next(line for line in lines if not line.startswith(("data: ", "event: ")) and line) == ":"
            turnstile.open()
            assert "message_stop" in (rest := "\n".join(lines)) or "[DONE]" in rest or '"stop":true' in rest
        until(lambda: server.is_idle)
