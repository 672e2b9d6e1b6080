"""Adapters on disk: what is one, and how it is called."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.adapters.paths import AdapterFolder, adapter_names, split_name


def make_folder(root: Path) -> Path:
    """A PEFT directory, a GGUF file, and things that are no adapters."""
    folder = root / "adapters"
    (folder / "tone").mkdir(parents=True)
    (folder / "tone" / "adapter_config.json").write_text("{}", encoding="utf-8")
    (folder / "facts.gguf").write_bytes(b"GGUF")
    (folder / "notes").mkdir()
    (folder / "readme.txt").write_text("", encoding="utf-8")
    (folder / "dir.gguf").mkdir()
    (root / "outside").mkdir()
    (root / "outside" / "adapter_config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def test_directories_with_a_config_and_gguf_files_are_adapters(folder: Path) -> None:
    adapters = AdapterFolder(folder)
    assert adapters.names() == ["facts", "tone"]
    assert adapters.find("tone") == str(folder / "tone")
    assert adapters.find("facts") == str(folder / "facts.gguf")


def test_new_ones_are_found(folder: Path) -> None:
    adapters = AdapterFolder(folder)
    assert adapters.find("late") is None
    (folder / "late.gguf").write_bytes(b"GGUF")
    assert adapters.find("late") == str(folder / "late.gguf")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside", "tone/", "notes", "dir", "dir.gguf", "facts.gguf", "a\0b", "x" * 5000, "/etc"],
)
def test_what_is_none_is_not_found(folder: Path, name: str) -> None:
    assert AdapterFolder(folder).find(name) is None


@settings(deadline=None)
@given(st.text(alphabet="./\\ a\0toneg~", max_size=12))
def test_nothing_outside_the_folder_is_found(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    root = tmp_path_factory.getbasetemp() / "anywhere"
    adapters = AdapterFolder(root / "adapters" if root.exists() else make_folder(root))
    found = adapters.find(name)
    assert found is None or Path(found).resolve().parent == root.resolve() / "adapters"


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        AdapterFolder(tmp_path / "nowhere")


def test_a_path_may_have_a_name_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert split_name("tone=some/path") == ("tone", "some/path")
    assert split_name("tone=a=b") == ("tone", "a=b")
    for text in ("some/path", "some/path=x", "a=b", "=x", "x=", "/abs/x=y"):
        assert split_name(text) == (None, text)


def test_adapters_are_named_after_their_files_and_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["a/pirate", "b/pirate.gguf", "c/pirate/", "fake", "base", "x,y.gguf", "."]
    assert adapter_names(paths, taken=["fake", "base"]) == [
        "pirate",
        "pirate-2",
        "pirate-3",
        "fake-2",
        "base-2",
        "x_y",
        tmp_path.name,
    ]
