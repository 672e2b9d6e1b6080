"""What tells models apart whose KV must not be mixed."""

import shutil
from pathlib import Path

import torch

from model.backend import reference_backend
from model.checkpoint.weights import load_checkpoint
from model.fingerprint import fingerprint
from tests.load.stamps import write_model


def test_contents_count_and_places_do_not(tmp_path: Path) -> None:
    write_model(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text() + " ")
    backend = reference_backend()
    prints = [fingerprint(load_checkpoint(tmp_path / name), backend) for name in ("one", "copy", "other")]
    assert prints[0] == prints[1]
    assert {name for name, value in prints[0].items() if prints[2][name] != value} == {"model"}


def test_the_arithmetic_counts(tmp_path: Path) -> None:
    write_model(tmp_path / "one")
    checkpoint = load_checkpoint(tmp_path / "one")
    ours, theirs = (fingerprint(checkpoint, reference_backend(dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert {name for name, value in ours.items() if theirs[name] != value} == {"dtype"}
