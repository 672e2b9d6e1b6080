"""Where adapters lie on disk, and what they are called there: the paths of the command line, and the folder of
`--lora-dir`. Reads no adapter.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

_CONFIG = "adapter_config.json"
_GGUF = ".gguf"


def split_name(text: str) -> tuple[str | None, str]:
    """Return the name and the path in `NAME=PATH`; None and the whole text where that is a path itself, or what stands
    before the first equals sign is the beginning of one.
    """
    name, equals, path = text.partition("=")
    if not equals or not name or not path or "/" in name or Path(text).exists():
        return None, text
    return name, path


def adapter_names(paths: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return a unique name for each adapter: the last part of its path, with a number where it is taken. Commas
    separate names elsewhere.
    """
    names: list[str] = []
    for path in paths:
        stem = Path(path).resolve().name.removesuffix(_GGUF).replace(",", "_")
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        names.append(next(name for name in candidates if name not in names and name not in taken))
    return names


class AdapterFolder:
    """A folder in which every directory with an adapter_config.json and every .gguf file is an adapter, called by its
    name without .gguf."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where `path` is no folder that can be read."""
        self._path = path
        next(path.iterdir(), None)

    def names(self) -> list[str]:
        """Return the names of the adapters there are now, in alphabetical order."""
        found = {path.name.removesuffix(_GGUF) for path in self._path.iterdir() if _is_adapter(path)}
        return sorted(found)

    def find(self, name: str) -> str | None:
        """Return the path of the adapter called `name`; None where the folder has none. Looks at nothing outside."""
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            return None
        for path in (self._path / name, self._path / (name + _GGUF)):
            if _is_adapter(path) and path.name.removesuffix(_GGUF) == name:
                return str(path)
        return None


def _is_adapter(path: Path) -> bool:
    try:
        return path.is_file() if path.suffix == _GGUF else (path / _CONFIG).is_file()
    except OSError:  # a name that is too long for a file, a folder that cannot be entered
        return False
