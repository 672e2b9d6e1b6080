"""Settings: llama-server's flags, the environment, their order, and what a wrong one says."""

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from server.adapters.arguments import AdapterArgument, MixArgument, read_mixes
from server.adapters.weights import AdapterWeight
from server.command_line import add_flags, read_settings
from server.setting_flags import Flag
from server.settings import Settings


def read(*arguments: str) -> Settings:
    """Read a command line."""
    parser = argparse.ArgumentParser(prog="cohort serve", allow_abbrev=False)
    add_flags(parser)
    return read_settings(parser, arguments)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"COHORT_{name.upper()}", raising=False)


def test_folders_are_separated_by_commas_or_given_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for field, name in (("model_dir", "--model-dir"), ("lora_load_dir", "--lora-load-dir")):
        assert getattr(read("-m", "x"), field) == ()
        assert getattr(read("-m", "x", name, "/a, b", name, "c"), field) == ("/a", "b", "c")
        monkeypatch.setenv(f"COHORT_{field.upper()}", "/d,e")
        assert getattr(read("-m", "x"), field) == ("/d", "e")


def test_the_defaults_are_the_documented_ones() -> None:
    settings = read("-m", "x")
    assert (settings.host, settings.port, settings.parallel, settings.batch_size) == ("127.0.0.1", 8080, 16, 256)
    assert (settings.ctx_size, settings.n_predict, settings.seed) == (0, -1, -1)
    assert (settings.temp, settings.top_k, settings.top_p, settings.min_p) == (0.8, 40, 0.95, 0.05)
    assert (settings.metrics, settings.slots, settings.adapters) == (True, True, ())
    assert (settings.policy, settings.max_wait, settings.fair_slack) == ("fair", 1, 1024)
    assert (settings.max_active_lists, settings.adapter_weight, settings.request_timeout) == (0, (), 0)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--model", "y"], "model", Path("y")),
        (["-a", "b,a"], "alias", "b,a"),
        (["-c", "4096"], "ctx_size", 4096),
        (["-np", "3"], "parallel", 3),
        (["--parallel", "3"], "parallel", 3),
        (["-b", "64"], "batch_size", 64),
        (["-t", "2"], "threads", 2),
        (["-n", "7"], "n_predict", 7),
        (["--host", "::1"], "host", "::1"),
        (["--host", "127.0.0.1,::1"], "host", "127.0.0.1,::1"),
        (["--tags", "chat,small"], "tags", "chat,small"),
        (["--cors-origins", "localhost"], "cors_origins", "localhost"),
        (["--sleep-idle-seconds", "60"], "sleep_idle_seconds", 60),
        (["-kvu"], "kv_unified", True),
        (["--no-kv-unified"], "kv_unified", False),
        (["-ub", "32"], "ubatch_size", 32),
        (["-ngl", "99"], "gpu_layers", 99),
        (["--n-gpu-layers", "all"], "gpu_layers", "all"),
        (["-v"], "verbose", True),
        (["--metrics"], "metrics", True),
        (["--no-metrics"], "metrics", False),
        (["--no-slots"], "slots", False),
        (["--temp", "0"], "temp", 0.0),
        (["--dtype", "float32"], "dtype", "float32"),
        (["--api-key-file", "keys"], "api_key_file", Path("keys")),
        (["--chat-template", "{{ messages }}"], "chat_template", "{{ messages }}"),
        (["--shutdown-grace", "1.5"], "shutdown_grace", 1.5),
        (["--lora-init-without-apply"], "lora_init_without_apply", True),
        (["--lora-dir", "adapters"], "lora_dir", Path("adapters")),
        (["--max-loras", "8"], "max_loras", 8),
        (["--lora-memory-bytes", "1000"], "lora_memory_bytes", 1000),
        (["--policy", "drain"], "policy", "drain"),
        (["--max-wait", "0.25"], "max_wait", 0.25),
        (["--fair-slack", "0"], "fair_slack", 0.0),
        (["--max-active-lists", "3"], "max_active_lists", 3),
        (["--request-timeout", "30"], "request_timeout", 30.0),
    ],
)
def test_flags_are_llama_servers(arguments: list[str], field: str, value: object) -> None:
    assert getattr(read("-m", "x", *arguments), field) == value


def test_adapters_keep_the_order_of_the_command_line() -> None:
    arguments = ["-m", "x", "--lora", "a,b", "--lora-scaled", "C:/d.gguf:0.5,e:-1", "--lora", "f"]
    assert [(item.path, item.scale) for item in read(*arguments).adapters] == [
        ("a", 1.0),
        ("b", 1.0),
        ("C:/d.gguf", 0.5),
        ("e", -1.0),
        ("f", 1.0),
    ]


def test_the_command_line_wins_over_the_environment_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_MODEL", "m")
    monkeypatch.setenv("COHORT_PARALLEL", "3")
    monkeypatch.setenv("COHORT_PORT", "9000")
    monkeypatch.setenv("COHORT_SLOTS", "false")
    settings = read("-np", "5", "--slots")
    assert (settings.model, settings.parallel, settings.port, settings.slots) == (Path("m"), 5, 9000, True)
    assert settings.batch_size == 256


def test_adapters_of_the_environment_give_way_to_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_LORA", "a,b")
    monkeypatch.setenv("COHORT_LORA_SCALED", "c:0.5")
    scaled = AdapterArgument("c", 0.5)
    assert read("-m", "x").adapters == (AdapterArgument("a"), AdapterArgument("b"), scaled)
    assert read("-m", "x", "--lora", "d").adapters == (AdapterArgument("d"),)


def test_adapters_may_have_names_of_their_own() -> None:
    settings = read("-m", "x", "--lora", "tone=a,b", "--lora-scaled", "facts=c:0.5")
    assert [(item.path, item.scale) for item in settings.adapters] == [("tone=a", 1.0), ("b", 1.0), ("facts=c", 0.5)]


def test_mixes_come_separated_by_semicolons_repeated_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = (
        MixArgument("support", (("tone", 0.7), ("fa:cts", -0.5))),
        MixArgument("a", (("tone", 1.0),)),
        MixArgument("b", (("x=y", 0.0),)),
    )
    assert read("-m", "x", "--mix", "support=tone:0.7,fa:cts:-.5;a=tone:1", "--mix", "b=x=y:0").mix == mixes
    monkeypatch.setenv("COHORT_MIX", "support=tone:0.7,fa:cts:-.5;a=tone:1;b=x=y:0")
    assert read("-m", "x").mix == mixes


names = st.text(st.characters(codec="utf-8", exclude_characters=",;=:", exclude_categories=["Cs"]), min_size=1)
finite = st.floats(allow_nan=False, allow_infinity=False)


@hypothesis_settings(deadline=None)
@given(st.dictionaries(names, st.lists(st.tuples(names, finite), min_size=1), min_size=1))
def test_a_mix_is_read_as_it_was_written(mixes: dict[str, list[tuple[str, float]]]) -> None:
    text = ";".join(f"{name}={','.join(f'{part}:{scale!r}' for part, scale in parts)}" for name, parts in mixes.items())
    assert read_mixes(text) == tuple(MixArgument(name, tuple(parts)) for name, parts in mixes.items())


@hypothesis_settings(deadline=None)
@given(st.text(alphabet="ab=:;,.15-e"))
def test_any_text_is_mixes_or_is_refused_with_what_is_wrong(text: str) -> None:
    try:
        mixes = read_mixes(text)
    except ValueError as error:
        message = str(error)
        assert message.startswith("wants ")
        return
    assert all(mix.name and mix.parts for mix in mixes)
    assert bool(mixes) == bool(text.strip(";"))


def test_weights_come_separated_by_commas_repeated_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (AdapterWeight("a=b", 2.0), AdapterWeight("base", 0.5), AdapterWeight("c", 1.0))
    assert read("-m", "x", "--adapter-weight", "a=b=2,base=.5", "--adapter-weight", "c=1").adapter_weight == weights
    monkeypatch.setenv("COHORT_ADAPTER_WEIGHT", "a=b=2,base=.5,c=1")
    assert read("-m", "x").adapter_weight == weights


@pytest.mark.parametrize(
    "setting", ["max_wait=1", "fair_slack=1024", "max_active_lists=0", "adapter_weight=a=1"], ids=lambda text: text[:8]
)
def test_what_only_the_fair_policy_honours_is_refused_with_another(
    setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, value = setting.partition("=")
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(SystemExit):
        read("-m", "x", "--policy", "drain", flag, value)
    assert f"{flag} is a setting of --policy fair, not of drain" in capsys.readouterr().err
    monkeypatch.setenv(f"COHORT_{name.upper()}", value)
    with pytest.raises(SystemExit):
        read("-m", "x", "--policy", "fcfs")
    assert f"COHORT_{name.upper()} is a setting of --policy fair, not of fcfs" in capsys.readouterr().err
    read("-m", "x")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--frobnicate"], ["--frobnicate"]),
        (["--para", "3"], ["--para"]),
        (["-np", "0"], ["-np/--parallel", "'0'"]),
        (["-np", "many"], ["-np/--parallel", "'many'"]),
        (["--port", "70000"], ["--port", "65535", "'70000'"]),
        (["--device", "tpu"], ["--device", "'cuda'", "'tpu'"]),
        (["--temp", "nan"], ["--temp", "'nan'"]),
        (["--top-p", "1.5"], ["--top-p", "'1.5'"]),
        (["--lora-scaled", "a"], ["--lora-scaled", "PATH:SCALE", "'a'"]),
        (["--lora-scaled", "a:b"], ["--lora-scaled", "'a:b'"]),
        (["--lora-scaled", "a:inf"], ["--lora-scaled", "'a:inf'"]),
        (["--lora-scaled", ":1"], ["--lora-scaled", "':1'"]),
        (["--mix", "support"], ["--mix", "NAME=ADAPTER:SCALE", "'support'"]),
        (["--mix", "a=b:1;c=d"], ["--mix", "ADAPTER:SCALE", "'d'"]),
        (["--mix", "a=b:nan"], ["--mix", "'b:nan'"]),
        (["--max-loras", "-1"], ["--max-loras", "'-1'"]),
        (["--policy", "lifo"], ["--policy", "'fair'", "'drain'", "'lifo'"]),
        (["--max-wait", "-1"], ["--max-wait", "'-1'"]),
        (["--max-wait", "inf"], ["--max-wait", "'inf'"]),
        (["--request-timeout", "soon"], ["--request-timeout", "'soon'"]),
        (["--adapter-weight", "a"], ["--adapter-weight", "NAME=W", "'a'"]),
        (["--adapter-weight", "a=0"], ["--adapter-weight", "'a=0'"]),
        (["--adapter-weight", "a=1,b=inf"], ["--adapter-weight", "'b=inf'"]),
        (["-c"], ["-c"]),
    ],
)
def test_a_wrong_flag_is_named_and_the_code_is_2(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        read("-m", "x", *arguments)
    assert exit_.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert all(part in message for part in parts), message


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COHORT_PARALLEL", "0")
    monkeypatch.setenv("COHORT_LORA_SCALED", "a")
    with pytest.raises(SystemExit) as exit_:
        read("-m", "x")
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert "COHORT_PARALLEL" in message
    assert "COHORT_LORA_SCALED" in message


def test_a_missing_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read()
    assert "-m/--model is required" in capsys.readouterr().err


def test_every_setting_has_a_flag_and_a_help() -> None:
    for name, field in Settings.model_fields.items():
        [flag] = [item for item in field.metadata if isinstance(item, Flag)]
        assert flag.help, name
        assert flag.names[-1].startswith("--"), name
