"""The fields of samplers beyond the usual ones: over HTTP to the model, their forms, defaults, bounds and errors."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import httpx
import pytest

from scheduler.batch import DEFAULT_SAMPLERS, Sampler, SamplerChain, SamplingParams
from server.errors import FieldInvalid
from server.sampling.fields import SamplerFields
from server.schemas import CompletionBody, parse
from tests.server.fakes import BODIES, BOS, EOS, FakeExecutor, fake_engine
from tests.server.live import LiveServer

HONOURED: dict[str, Any] = {
    "samplers": ["top_k", "min_p"],
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2.0,
    "typical_p": 0.75,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "dry_multiplier": 0.8,
    "dry_base": 2.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 128,
    "dry_sequence_breakers": ["\n", "end"],
    "mirostat": 2,
    "mirostat_tau": 4.5,
    "mirostat_eta": 0.2,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.75,
}


@pytest.fixture(scope="module")
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture(scope="module")
def client(executor: FakeExecutor) -> Iterator[httpx.Client]:
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as opened:
        yield opened


def sampling_of(executor: FakeExecutor) -> SamplingParams:
    """What the model was asked for last."""
    sampling = executor.batches[-1].rows[0].sampling
    assert sampling is not None
    return sampling


def test_every_field_has_a_test() -> None:
    assert {*HONOURED, "post_sampling_probs"} == set(SamplerFields.model_fields)
    assert {*HONOURED, "dry_breakers", "token_texts"} == {field.name for field in fields(SamplerChain)}


@pytest.mark.parametrize("field", HONOURED)
def test_a_field_reaches_the_model_and_is_told(client: httpx.Client, executor: FakeExecutor, field: str) -> None:
    value = HONOURED[field]
    response = client.post("/completion", json={"prompt": "ab", "n_predict": 1, field: value})
    settings = response.json()["generation_settings"]
    chain = sampling_of(executor).chain
    assert chain is not None
    assert getattr(chain, field) == (tuple(value) if isinstance(value, list) else value)
    assert settings[field] == value


@pytest.mark.parametrize("path", BODIES)
def test_every_route_takes_them(client: httpx.Client, executor: FakeExecutor, path: str) -> None:
    assert client.post(path, json=BODIES[path] | {"max_tokens": 1, "mirostat": 1}).status_code == 200
    assert sampling_of(executor).chain == SamplerChain(mirostat=1)


def test_breakers_reach_the_model_as_tokens(client: httpx.Client, executor: FakeExecutor) -> None:
    body = {"prompt": "ab", "n_predict": 1, "dry_multiplier": 1, "dry_sequence_breakers": ["s", ">!"]}
    assert client.post("/completion", json=body).status_code == 200
    chain = sampling_of(executor).chain
    assert chain is not None
    assert chain.dry_breakers[ord("s")] == ((),)
    assert chain.dry_breakers[ord(">")] == ((ord("!"),),)
    assert chain.dry_breakers[BOS] == ((), (ord("!"),))


def test_the_defaults_are_llama_servers_and_leave_the_usual_chain(client: httpx.Client, executor: FakeExecutor) -> None:
    settings = client.post("/completion", json={"prompt": "ab", "n_predict": 1}).json()["generation_settings"]
    assert sampling_of(executor).chain is None
    assert {name: settings[name] for name in HONOURED} == {
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
    }


@pytest.mark.parametrize("body", [{}, dict.fromkeys(HONOURED), {"samplers": "edskypmxt"}, {"dry_base": 0.5}])
def test_what_asks_for_the_usual_asks_for_nothing(
    client: httpx.Client, executor: FakeExecutor, body: dict[str, object]
) -> None:
    assert client.post("/completion", json={"prompt": "ab", "n_predict": 1} | body).status_code == 200
    assert sampling_of(executor).chain is None


def test_the_sampler_infill_is_told_what_tokens_stand_for(client: httpx.Client, executor: FakeExecutor) -> None:
    body = {"prompt": "ab", "n_predict": 1, "samplers": ["top_k", "infill"]}
    settings = client.post("/completion", json=body).json()["generation_settings"]
    assert settings["samplers"] == ["top_k", "infill"]
    chain = sampling_of(executor).chain
    assert chain is not None
    assert chain.token_texts is not None
    assert (chain.token_texts.pieces[97], chain.token_texts.eog_ids, chain.token_texts.end_id) == (b"a", (EOS,), EOS)


def test_probabilities_after_the_samplers_have_names_of_their_own(client: httpx.Client, executor: FakeExecutor) -> None:
    body = {"prompt": "ab", "n_predict": 1, "n_probs": 3, "post_sampling_probs": True}
    result = client.post("/completion", json=body).json()
    [token] = result["completion_probabilities"]
    assert sampling_of(executor).post_sampling_probs
    assert result["generation_settings"]["post_sampling_probs"] is True
    assert list(token) == ["id", "token", "bytes", "prob", "top_probs"]
    assert token["prob"] == pytest.approx(math.exp(-0.25))
    assert [list(top) for top in token["top_probs"]] == [["id", "token", "bytes", "prob"]] * 3


def test_openais_answers_have_them_too(client: httpx.Client) -> None:
    path = "/v1/chat/completions"
    asked = {"max_tokens": 1, "logprobs": True, "top_logprobs": 2, "post_sampling_probs": True}
    [choice] = client.post(path, json=BODIES[path] | asked).json()["choices"]
    [token] = choice["logprobs"]["content"]
    assert len(token["top_probs"]) == 2
    assert "prob" in token


@pytest.mark.parametrize(
    ("value", "samplers"),
    [
        ("edskypmxtia", (*DEFAULT_SAMPLERS, Sampler.INFILL, Sampler.ADAPTIVE_P)),
        (["infill"], (Sampler.INFILL,)),
        ("kk", (Sampler.TOP_K, Sampler.TOP_K)),
        ("", ()),
        ([], ()),
        (["typical_p", "typ", "typ-p", "typp"], (Sampler.TYPICAL_P,) * 4),
        (["nucleus", "TEMP", "min-p"], (Sampler.TOP_P, Sampler.TEMPERATURE, Sampler.MIN_P)),
    ],
)
def test_samplers_have_names_and_letters(value: object, samplers: tuple[Sampler, ...]) -> None:
    assert parse(CompletionBody, {"samplers": value}).samplers == samplers


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("xtc_probability", 7, 1.0),
        ("xtc_probability", -1, 0.0),
        ("xtc_threshold", 2, 1.0),
        ("mirostat", 5, 2),
        ("mirostat", -1, 0),
        ("adaptive_target", 3, 1.0),
        ("dry_base", 0.99, 1.75),
        ("typical_p", 5, 5.0),
    ],
)
def test_values_out_of_range_are_clamped_where_llama_server_does(field: str, value: object, taken: float) -> None:
    assert getattr(parse(CompletionBody, {field: value}), field) == taken


LETTERS = "edskypmxtia"
NAMES = "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, infill, adaptive_p"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("samplers", 5, "must be an array of names of samplers or a string of their letters, but is number"),
        ("samplers", [5], "must hold names of samplers, but holds number"),
        ("samplers", ["top_k", "magic"], f"has the samplers {NAMES}, but got 'magic'"),
        ("samplers", "kqp", f"has the samplers {LETTERS}, but got 'q'"),
        ("samplers", "k" * 33, "must name at most 32 samplers, but names 33"),
        ("dynatemp_range", "1", "type must be number, but is string"),
        ("typical_p", math.nan, "must be a finite number, but got nan"),
        ("top_n_sigma", 1e7, "Value must be between -1000000.0 <= value <= 1000000.0, but got 10000000.0"),
        ("xtc_probability", True, "type must be number, but is boolean"),
        ("dry_allowed_length", -1, "Value must be between 0 <= value <= 2147483647, but got -1"),
        ("dry_penalty_last_n", -1, "Value must be between 0 <= value <= 2147483647, but got -1"),
        ("dry_sequence_breakers", [], "must be a non-empty array of strings, but is array"),
        ("dry_sequence_breakers", "\n", "must be a non-empty array of strings, but is string"),
        ("dry_sequence_breakers", ["a", 5], "must be a non-empty array of strings, but is array"),
        ("dry_sequence_breakers", [""], "each must have 1 to 40 bytes, but got ''"),
        ("dry_sequence_breakers", ["x"] * 65, "must be at most 64 strings, but are 65"),
        ("mirostat", 1.5, "must be a whole number, but got 1.5"),
        ("mirostat", False, "type must be number, but is boolean"),
        ("adaptive_decay", 1, "Value must be between 0.0 <= value <= 0.99, but got 1"),
        ("post_sampling_probs", 1, "type must be boolean, but is number"),
    ],
)
def test_a_bad_value_is_named(field: str, value: object, reason: str) -> None:
    with pytest.raises(FieldInvalid) as error:
        parse(CompletionBody, {field: value})
    assert str(error.value) == f"Field '{field}': {reason}"
