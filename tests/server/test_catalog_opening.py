"""The catalog at the start, as the settings describe it."""

import logging
from pathlib import Path

import pytest

from server.adapters.arguments import AdapterArgument, MixArgument
from server.adapters.catalog import AdapterSource, NameRefused, shortest
from server.catalog_opening import model_names, open_catalog
from server.errors import ModelUnknown
from server.settings import Settings


def settings_with(**changes: object) -> Settings:
    return Settings.model_validate({"model": "some/file.gguf", "alias": "fake"} | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three adapters: a, b and c."""
    for name in ("c.gguf", "a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return tmp_path


def test_a_model_without_an_alias_is_called_by_its_path() -> None:
    assert model_names(settings_with(alias="")) == ("some/file.gguf",)
    assert model_names(settings_with(alias="z, a")) == ("a", "z")


def test_the_command_line_comes_first_then_the_folder_by_name(folder: Path) -> None:
    lora = (AdapterArgument("x/zeta.gguf", 0.3), AdapterArgument("tone=x/zeta.gguf"))
    catalog = open_catalog(settings_with(lora=lora, lora_dir=folder))
    shown = [(entry.id, entry.name, shortest(catalog.scale_of(entry)), entry.is_pinned) for entry in catalog.entries]
    assert shown == [
        (0, "zeta", 0.3, True),
        (1, "tone", 1.0, True),
        (2, "a", 0.0, False),
        (3, "b", 0.0, False),
        (4, "c", 0.0, False),
    ]
    assert [entry.source for entry in catalog.entries[1:3]] == [AdapterSource.COMMAND_LINE, AdapterSource.FOLDER]
    assert catalog.entries[1].path == "x/zeta.gguf"


def test_adapters_can_start_at_scale_0() -> None:
    lora = (AdapterArgument("a.gguf", 0.3), AdapterArgument("b.gguf"))
    assert open_catalog(settings_with(lora=lora, lora_init_without_apply=True)).current == ()


def test_given_names_go_before_names_of_files() -> None:
    lora = (AdapterArgument("x/tone.gguf"), AdapterArgument("tone=y/other.gguf"))
    assert [entry.name for entry in open_catalog(settings_with(lora=lora)).entries] == ["tone-2", "tone"]


@pytest.mark.parametrize("name", ["fake", "base", "a, b", "tone"])
def test_a_given_name_that_cannot_be_ends_the_start(name: str) -> None:
    lora = (AdapterArgument("tone=x"), AdapterArgument(f"{name}=y"))
    with pytest.raises(NameRefused, match=f"--lora {name}=y: "):
        open_catalog(settings_with(lora=lora))


def test_an_adapter_of_the_folder_that_the_command_line_names_is_one(folder: Path) -> None:
    lora = (AdapterArgument(str(folder / "b.gguf")), AdapterArgument(f"x={folder / 'c.gguf'}"))
    catalog = open_catalog(settings_with(lora=lora, lora_dir=folder))
    assert [(entry.name, entry.is_pinned) for entry in catalog.entries] == [("b", True), ("x", True), ("a", False)]


def test_a_file_whose_name_cannot_be_is_left_out_and_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "x,y.gguf").write_bytes(b"GGUF")
    (folder / "fake.gguf").write_bytes(b"GGUF")
    with caplog.at_level(logging.WARNING):
        catalog = open_catalog(settings_with(lora_dir=folder))
    assert [entry.name for entry in catalog.entries] == ["a", "b", "c"]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["--lora-dir", "--lora-dir"]
    assert "fake.gguf" in caplog.text
    assert "x,y.gguf" in caplog.text


def test_mixes_name_adapters_of_the_command_line_and_of_the_folder(folder: Path) -> None:
    mix = (MixArgument("support", (("tone", 0.7), ("b", -0.5))),)
    catalog = open_catalog(settings_with(lora=(AdapterArgument("tone=x"),), lora_dir=folder, mix=mix))
    choice = catalog.resolve(None, "support")
    assert [(entry.name, shortest(scale)) for entry, scale in choice] == [("tone", 0.7), ("b", -0.5)]


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("support", (("nobody", 1.0),), "--mix support: .*'nobody'.*there are fake, tone"),
        ("tone", (("tone", 1.0),), "--mix tone: "),
        ("support", (("tone", 1.0), ("tone", 2.0)), "--mix support: "),
        ("support", (("tone", 1e300),), "--mix support: .*finite"),
    ],
)
def test_a_mix_that_cannot_be_ends_the_start(name: str, parts: tuple[tuple[str, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_catalog(settings_with(lora=(AdapterArgument("tone=x"),), mix=(MixArgument(name, parts),)))


@pytest.mark.parametrize(("setting", "is_error"), [({}, False), ({"lora_load_dir": ["x"]}, True)])
def test_an_unknown_name_is_an_error_where_adapters_can_come_later(setting: dict[str, object], is_error: bool) -> None:
    catalog = open_catalog(settings_with(lora=(AdapterArgument("tone=x"),), **setting))
    if is_error:
        with pytest.raises(ModelUnknown):
            catalog.resolve(None, "gpt-4")
    else:
        assert catalog.resolve(None, "gpt-4") == catalog.current


def test_a_folder_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--lora-dir .*nowhere: No such file"):
        open_catalog(settings_with(lora_dir=tmp_path / "nowhere"))


def test_two_mixes_of_one_name_end_the_start() -> None:
    mix = (MixArgument("support", (("tone", 1.0),)), MixArgument("support", (("tone", 2.0),)))
    with pytest.raises(ValueError, match="--mix support: "):
        open_catalog(settings_with(lora=(AdapterArgument("tone=x"),), mix=mix))
