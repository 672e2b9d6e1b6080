"""A PEFT directory for a tiny model, to be damaged by tests."""

import shutil
from pathlib import Path

import pytest
from peft import LoraConfig

from model.adapters.content import AdapterContent
from model.adapters.peft import read_peft
from model.adapters.tensors import AdapterError
from tests.model.adapter_makers import base_weights, make_peft_adapter
from tests.model.tiny import make_model


class Original:
    """What is written once: a tiny model and an adapter of its q, v and down projections, rank 4."""

    def __init__(self, path: Path) -> None:
        self.path = path / "adapter"
        oracle = make_model("llama", path / "base")
        self.base = base_weights(path / "base")
        make_peft_adapter(
            oracle, self.path, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
        )


class Written:
    """A copy of it."""

    def __init__(self, original: Original, path: Path) -> None:
        self.path = shutil.copytree(original.path, path)
        self.base = original.base

    def load(self) -> AdapterContent:
        return read_peft(self.path, self.base)

    def refusal(self) -> str:
        with pytest.raises(AdapterError) as refused:
            self.load()
        return str(refused.value)
