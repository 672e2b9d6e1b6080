"""The response cache over HTTP: a hit looks like a new answer and computes nothing, and what is not stored."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.schemas import ChatBody, CompletionBody
from server.settings import Settings
from tests.server.fakes import BODIES, NUM_SLOTS, FakeExecutor, Turnstile, fake_engine, fake_settings, says
from tests.server.live import LiveServer, frames, until

GREEDY = {"temperature": 0, "n_predict": 6}


def caching(**values: object) -> Settings:
    return fake_settings().model_copy(update={"response_cache": 32, "seed": -1, **values})


class Cached:
    """A server with a response cache, and what it has computed."""

    def __init__(self, answer: Any = None, turnstile: Turnstile | None = None, **values: object) -> None:
        self.executor = FakeExecutor(turnstile=turnstile) if answer is None else FakeExecutor(answer, turnstile)
        settings = caching(**values)
        self.server = LiveServer(lambda _: fake_engine(self.executor, settings), settings)

    def counts(self) -> tuple[float, float]:
        """Look-ups and hits."""
        text = self.server.engine.metrics.render("")[0].decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("cohort_response_cache"))
        return (
            float(lines["cohort_response_cache_queries_total"]),
            float(lines["cohort_response_cache_hits_total"]),
        )

    def is_hit(self, client: httpx.Client, path: str, body: dict[str, object]) -> bool:
        """Send a request; whether it was answered from the cache: then nothing was computed."""
        before, num_steps = self.counts()[1], len(self.executor.batches)
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        hit = self.counts()[1] > before
        assert (len(self.executor.batches) == num_steps) == hit
        return hit


@pytest.fixture(scope="module")
def cached() -> Iterator[Cached]:
    cached = Cached()
    with cached.server:
        yield cached


@pytest.fixture(scope="module")
def client(cached: Cached) -> Iterator[httpx.Client]:
    with cached.server.client() as opened:
        yield opened


def content(frame: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs between any two: ids, times, slots."""
    kept = {
        name: value
        for name, value in frame.items()
        if name not in ("id", "created", "timings", "id_slot", "generation_settings")
    }
    if "usage" in kept:
        kept["usage"] = kept["usage"] | {"prompt_tokens_details": None}
    return kept


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize("stream", [False, True])
def test_a_hit_looks_like_a_new_answer_in_every_form(
    cached: Cached, client: httpx.Client, path: str, stream: bool
) -> None:
    more = {
        "stream": stream,
        "stream_options": {"include_usage": True},
        "n_probs": 2,
        "n": 2,
        "seed": hash(path) % 1000,
    }
    body = BODIES[path] | GREEDY | more | {"stop": [f"{path} never comes {stream}"]}
    answers = []
    queries, hits = cached.counts()
    for _ in range(2):
        with client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            found = list(frames(response)) if stream else json.loads(response.read())
            answers.append(found if isinstance(found, list) else [found])
    assert cached.counts() == (queries + 4, hits + 2)
    first, again = ([content(frame) for frame in answer] for answer in answers)
    if stream:  # choices come in any order
        first, again = (sorted(frames_, key=json.dumps) for frames_ in (first, again))
    assert first == again
    until(lambda: cached.server.is_idle)


def test_the_prompt_of_a_hit_counts_as_cached(client: httpx.Client) -> None:
    body = {"prompt": "usage", **GREEDY}
    first, again = (client.post("/v1/completions", json=body).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["usage"] == first["usage"] | {"prompt_tokens_details": {"cached_tokens": 6}}
    assert (again["timings"]["cache_n"], again["timings"]["prompt_n"], again["timings"]["predicted_n"]) == (6, 0, 6)


def test_one_form_of_answer_finds_what_another_has_stored(cached: Cached, client: httpx.Client) -> None:
    assert not cached.is_hit(client, "/completion", {"prompt": "forms", **GREEDY})
    assert cached.is_hit(client, "/v1/completions", {"prompt": "forms", "temperature": 0, "max_tokens": 6})
    assert cached.is_hit(client, "/completion", {"prompt": [256, *b"forms"], "stream": True, **GREEDY})


CHANGES: dict[str, object] = {
    "lora": [{"id": 0, "scale": 0.25}],
    "model": "adapter1",
    "n_predict": 5,
    "prompt": "another",
    "stop": ["zz"],
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "n_indent": 1,
    "min_tokens": 2,
    "ignore_eos": True,
    "logit_bias": [[5, 1.0]],
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "min_p": 0.25,
    "min_keep": 3,
    "repeat_last_n": 9,
    "repeat_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "seed": 43,
    "n_probs": 3,
    "post_sampling_probs": True,
    "samplers": "kt",
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "typical_p": 0.5,
    "top_n_sigma": 1.0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "dry_multiplier": 0.5,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["zz"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.5,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.5,
    "grammar": "root ::= [a-z]*",
    "json_schema": {"type": "integer"},
    "response_format": {"type": "json_object"},
    "guided_json": {"type": "boolean"},
    "guided_regex": "[a-z]+",
    "guided_grammar": "root ::= [a-z]{2,9}",
    "guided_choice": ["abcdef"],
    "structured_outputs": {"choice": ["abcdefg"]},
    "regex": "[b-y]*",
    "ebnf": "root ::= [a-z]{3,9}",
}
"""Another value for each field of a body that changes what the answer says."""
NO_CHANGES: dict[str, object] = {
    "n": 1,
    "best_of": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "cache_prompt": False,
    "id_slot": 1,
    "sse_ping_interval": 5,
    "return_progress": True,
    "verbose": True,
    "n_keep": 5,
    "n_discard": 5,
    "timings_per_token": True,
    "return_tokens": True,
    "response_fields": ["content"],
}
ELSEWHERE = {
    "t_max_predict_ms",
    "logprobs",
    "top_logprobs",
    "messages",
    "echo",
    "add_generation_prompt",
    "reasoning_effort",
}
ELSEWHERE |= {"continue_final_message", "chat_template_kwargs", "grammar_lazy", "grammar_triggers", "preserved_tokens"}
ELSEWHERE |= {"tools", "tool_choice", "parallel_tool_calls", "reasoning_format"}
ELSEWHERE |= {"reasoning_budget_tokens", "reasoning_budget_message", "suffix"}
"""Tested below, or part of the prompt, or of a grammar."""
BODY = {"prompt": "fields", "n_predict": 4, "temperature": 0.75, "seed": 42}


def test_every_field_of_a_body_is_tested() -> None:
    fields = {*CompletionBody.model_fields, *ChatBody.model_fields}
    assert fields == {*CHANGES, *NO_CHANGES, *ELSEWHERE}


@pytest.mark.parametrize("field", CHANGES)
def test_another_value_of_a_field_that_matters_is_a_miss(cached: Cached, client: httpx.Client, field: str) -> None:
    cached.is_hit(client, "/completion", BODY)
    changed = BODY | {field: CHANGES[field]}
    assert not cached.is_hit(client, "/completion", changed)
    assert cached.is_hit(client, "/completion", changed)
    assert cached.is_hit(client, "/completion", BODY)


@pytest.mark.parametrize("field", NO_CHANGES)
def test_a_field_that_only_forms_the_answer_is_a_hit(cached: Cached, client: httpx.Client, field: str) -> None:
    cached.is_hit(client, "/completion", BODY)
    assert cached.is_hit(client, "/completion", BODY | {field: NO_CHANGES[field]})


def test_choices_are_found_one_by_one(cached: Cached, client: httpx.Client) -> None:
    body = {"prompt": "choices", "n_predict": 2, "temperature": 1, "seed": 5}
    client.post("/completion", json=body | {"n": 2})
    assert cached.is_hit(client, "/completion", body | {"seed": 6})
    queries, hits = cached.counts()
    client.post("/completion", json=body | {"n": 3})
    assert cached.counts() == (queries + 3, hits + 2)


@pytest.mark.parametrize(
    "change",
    [{"seed": None}, {"seed": -1}, {"seed": 2**32 - 1}, {"t_max_predict_ms": 60_000}],
    ids=str,
)
def test_what_is_not_deterministic_is_neither_stored_nor_looked_up(
    cached: Cached, client: httpx.Client, change: dict[str, object]
) -> None:
    before = cached.counts()
    for _ in range(2):
        assert not cached.is_hit(client, "/completion", BODY | {"prompt": "chance"} | change)
    assert cached.counts() == before


def test_the_operators_seed_makes_requests_deterministic() -> None:
    cached = Cached(seed=3)
    with cached.server, cached.server.client() as client:
        assert not cached.is_hit(client, "/completion", {"prompt": "a"})
        assert cached.is_hit(client, "/completion", {"prompt": "a"})
        assert cached.is_hit(client, "/completion", {"prompt": "a", "seed": 3})


def test_new_scales_are_a_miss_and_the_old_ones_a_hit(cached: Cached, client: httpx.Client) -> None:
    body = {"prompt": "scales", **GREEDY}
    assert not cached.is_hit(client, "/completion", body)
    client.post("/lora-adapters", json=[{"id": 0, "scale": 0.125}])
    assert not cached.is_hit(client, "/completion", body)
    client.post("/lora-adapters", json=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])
    assert cached.is_hit(client, "/completion", body)


def test_the_content_of_an_adapter_counts_and_its_name_does_not(tmp_path: Path) -> None:
    for name in ("one.gguf", "two.gguf"):
        (tmp_path / name).touch()
    cached = Cached(lora_load_dir=(str(tmp_path),))
    with cached.server, cached.server.client() as client:

        def load(name: str, file: str) -> None:
            body = {"lora_name": name, "lora_path": str(tmp_path / file), "load_inplace": True}
            assert client.post("/v1/load_lora_adapter", json=body).status_code == 200

        def is_hit(name: str) -> bool:
            return cached.is_hit(client, "/completion", {"prompt": "content", "model": name, **GREEDY})

        load("tone", "one.gguf")
        assert not is_hit("tone")
        load("same", "one.gguf")
        assert is_hit("same")
        load("tone", "two.gguf")
        assert not is_hit("tone")
        load("tone", "one.gguf")
        assert is_hit("tone")


@pytest.mark.parametrize(("answer", "stop"), [("hello", []), ("hello world", ["lo w"]), ("hello world", [])])
def test_answers_that_end_by_themselves_are_stored_with_their_end(answer: str, stop: list[str]) -> None:
    cached = Cached(says(answer))
    body = {"prompt": "a", "stop": stop, "temperature": 0, "n_predict": 8, "return_tokens": True}
    with cached.server, cached.server.client() as client:
        first, again = (client.post("/completion", json=body).json() for _ in range(2))
        assert cached.counts() == (2, 1)
    assert {**content(first)} == {**content(again)}
    assert first["generation_settings"]["stop"] == stop


@pytest.mark.parametrize("ending", ["leaves", "fails", "runs out of time"])
def test_answers_that_do_not_end_by_themselves_are_not_stored(ending: str) -> None:
    turnstile = Turnstile()
    cached = Cached(turnstile=turnstile, request_timeout=100.0)
    body = {"prompt": "a", "temperature": 0, "n_predict": 50, "stream": True}
    with cached.server as server, server.client() as client:
        if ending == "fails":
            cached.executor.error = RuntimeError("the card is gone")
        with client.stream("POST", "/completion", json=body) as response:
            if ending == "fails":
                turnstile.let(1)
                assert "error" in list(frames(response))[-1]
            else:
                turnstile.let(3)
                received = frames(response)
                next(received)
                if ending == "runs out of time":
                    server.advance(101.0)
                    assert list(received)[-1]["stop_type"] == "limit"
        until(lambda: server.is_idle)
        assert len(server.engine.responses) == 0
        turnstile.open()


def test_a_hit_needs_no_slot() -> None:
    turnstile = Turnstile()
    cached = Cached(turnstile=turnstile)
    body = {"prompt": "a", **GREEDY}
    with cached.server as server, server.client() as client:
        turnstile.let(6)
        assert not cached.is_hit(client, "/completion", body)
        running = [
            client.send(client.build_request("POST", "/completion", json={"prompt": "b", "stream": True}), stream=True)
            for _ in range(NUM_SLOTS)
        ]
        turnstile.let(1)
        until(lambda: server.num_free_slots == 0)
        response = client.post("/completion", json=body)
        assert (response.json()["content"], response.json()["id_slot"]) == (alphabet_of(cached, 6), -1)
        for stream in running:
            stream.close()
        turnstile.open()


def alphabet_of(cached: Cached, length: int) -> str:
    first = cached.executor.answer(cached.executor.batches[0].key, 0)
    return "".join(chr(ord("a") + (first - ord("a") + index) % 26) for index in range(length))


def test_a_server_that_shuts_down_refuses_hits_too() -> None:
    turnstile = Turnstile()
    cached = Cached(turnstile=turnstile)
    with cached.server as server, server.client() as client, server.client() as other:
        turnstile.let(6)
        assert not cached.is_hit(client, "/completion", {"prompt": "a", **GREEDY})
        with client.stream("POST", "/completion", json={"prompt": "b", "stream": True}) as response:
            server.stop()
            until(lambda: server.service.door.is_closing)
            refused = other.post("/completion", json={"prompt": "a", **GREEDY})
            assert refused.status_code == 503
            turnstile.open()
            list(frames(response))


def test_without_the_setting_nothing_is_stored() -> None:
    cached = Cached(response_cache=0)
    with cached.server, cached.server.client() as client:
        for _ in range(2):
            assert not cached.is_hit(client, "/completion", {"prompt": "a", **GREEDY})
        assert cached.counts() == (0, 0)
