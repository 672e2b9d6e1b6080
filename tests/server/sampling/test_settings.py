"""The settings of samplers: from the command line and the environment to requests that say nothing of them."""

import argparse
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from scheduler.batch import DEFAULT_SAMPLERS, Sampler, SamplerChain
from server.command_line import add_flags, read_settings
from server.sampling.settings import SamplerSettings
from server.settings import Settings
from tests.server.fakes import EOS, VOCAB_SIZE, FakeExecutor, fake_engine, fake_settings
from tests.server.live import LiveServer

FLAGS: dict[str, tuple[list[str], Any]] = {
    "samplers": (["--samplers", "top_k;min_p"], (Sampler.TOP_K, Sampler.MIN_P)),
    "dynatemp_range": (["--dynatemp-range", "0.5"], 0.5),
    "dynatemp_exponent": (["--dynatemp-exp", "2"], 2.0),
    "typical_p": (["--typical", "0.9"], 0.9),
    "top_n_sigma": (["--top-nsigma", "1.5"], 1.5),
    "xtc_probability": (["--xtc-probability", "0.5"], 0.5),
    "xtc_threshold": (["--xtc-threshold", "0.2"], 0.2),
    "dry_multiplier": (["--dry-multiplier", "0.8"], 0.8),
    "dry_base": (["--dry-base", "2.5"], 2.5),
    "dry_allowed_length": (["--dry-allowed-length", "3"], 3),
    "dry_penalty_last_n": (["--dry-penalty-last-n", "128"], 128),
    "dry_sequence_breakers": (["--dry-sequence-breaker", "\n", "--dry-sequence-breaker", "end"], ("\n", "end")),
    "mirostat": (["--mirostat", "2"], 2),
    "mirostat_tau": (["--mirostat-ent", "4"], 4.0),
    "mirostat_eta": (["--mirostat-lr", "0.2"], 0.2),
    "adaptive_target": (["--adaptive-target", "0.5"], 0.5),
    "adaptive_decay": (["--adaptive-decay", "0.5"], 0.5),
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SamplerSettings.model_fields:
        monkeypatch.delenv(f"COHORT_{name.upper()}", raising=False)


def read(*arguments: str) -> Settings:
    """Read a command line."""
    parser = argparse.ArgumentParser(prog="cohort serve", allow_abbrev=False)
    add_flags(parser)
    return read_settings(parser, ["-m", "model.gguf", *arguments])


def test_every_sampler_has_a_flag() -> None:
    assert {*FLAGS, "dry_breakers", "token_texts"} == {field.name for field in fields(SamplerChain)}
    assert read().chain == SamplerChain()


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_sets_its_sampler(name: str) -> None:
    arguments, value = FLAGS[name]
    assert read(*arguments).chain == replace(SamplerChain(), **{name: value})


def test_samplers_may_be_letters_and_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("--sampling-seq", "kt").samplers == (Sampler.TOP_K, Sampler.TEMPERATURE)
    monkeypatch.setenv("COHORT_SAMPLERS", "temperature")
    monkeypatch.setenv("COHORT_DRY_SEQUENCE_BREAKERS", "end")
    assert (read().samplers, read().dry_sequence_breakers) == ((Sampler.TEMPERATURE,), ("end",))
    assert read("--samplers", ";".join(DEFAULT_SAMPLERS)).samplers == DEFAULT_SAMPLERS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samplers", "top_k;magic"], "--samplers"),
        (["--sampling-seq", "k!"], "--samplers"),
        (["--mirostat", "3"], "--mirostat"),
        (["--adaptive-decay", "1"], "--adaptive-decay"),
        (["--dry-base", "0.5"], "--dry-base"),
        (["--dry-sequence-breaker", ""], "--dry-sequence-breaker"),
        (["--typical", "nan"], "--typical"),
        *((["--logit-bias", text], "--logit-bias") for text in ("5", "5*1", "+1", "5+x", "5+inf", "5+nan", "5+1e7")),
        (["--logit-bias", "5+1", "-l", "5-1"], "names 5 twice"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(*arguments)
    assert message in capsys.readouterr().err


def test_requests_go_before_settings_field_by_field() -> None:
    values = {"top_n_sigma": 1.5, "xtc_probability": 0.5, "samplers": (Sampler.TOP_N_SIGMA, Sampler.XTC)}
    executor, settings = FakeExecutor(), fake_settings().model_copy(update=values)
    with LiveServer(lambda settings: fake_engine(executor, settings), settings) as server, server.client() as client:

        def chain(**body: object) -> SamplerChain | None:
            client.post("/completion", json={"prompt": "a", "n_predict": 1} | body)
            sampling = executor.batches[-1].rows[0].sampling
            assert sampling is not None
            return sampling.chain

        default = replace(SamplerChain(), **values)  # type: ignore[arg-type]
        assert chain() == default
        assert chain(top_n_sigma=-1.0) == replace(default, top_n_sigma=-1.0)
        assert chain(top_n_sigma=-1.0, xtc_probability=0, samplers=list(DEFAULT_SAMPLERS)) is None
        params = client.get("/props").json()["default_generation_settings"]["params"]
        assert (params["top_n_sigma"], params["xtc_probability"]) == (1.5, 0.5)


def test_biases_are_a_token_and_a_number() -> None:
    assert read().logit_bias == ()
    assert read("--logit-bias", "15043+1", "-l", "7-2.5", "-l", "9-inf").logit_bias == (
        (7, -2.5),
        (9, -math.inf),
        (15043, 1.0),
    )


def test_biases_of_the_environment_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_LOGIT_BIAS", "5+1,6-1")
    monkeypatch.setenv("COHORT_IGNORE_EOS", "1")
    assert (read().logit_bias, read().ignore_eos) == (((5, 1.0), (6, -1.0)), True)


def test_a_bias_of_no_token_ends_the_start() -> None:
    settings = fake_settings().model_copy(update={"logit_bias": ((VOCAB_SIZE, 1.0),)})
    with pytest.raises(ValueError, match=f"--logit-bias names token {VOCAB_SIZE}, the vocabulary has {VOCAB_SIZE}"):
        fake_engine(FakeExecutor(), settings)


def test_requests_go_before_the_settings_of_biases_and_ends() -> None:
    executor = FakeExecutor()
    settings = fake_settings().model_copy(update={"logit_bias": ((97, 1.5),), "ignore_eos": True})
    cases: list[tuple[dict[str, object], list[tuple[int, float | None]], bool]] = [
        ({}, [(97, 1.5), (EOS, None)], True),
        ({"logit_bias": [[98, 2]]}, [(98, 2.0), (EOS, None)], True),
        ({"ignore_eos": False}, [(97, 1.5)], False),
        ({"ignore_eos": None, "logit_bias": []}, [(EOS, None)], True),
    ]
    with LiveServer(lambda settings: fake_engine(executor, settings), settings) as server, server.client() as client:
        for fields, bias, ignores in cases:
            told = client.post("/completion", json={"prompt": "a", "n_predict": 1} | fields).json()
            used = told["generation_settings"]
            assert [(item["token"], item["bias"]) for item in used["logit_bias"]] == bias
            assert used["ignore_eos"] is ignores
            sampling = executor.batches[-1].rows[0].sampling
            assert sampling is not None
            assert sampling.logit_bias == tuple((token, -math.inf if value is None else value) for token, value in bias)
