"""Adapters and mixes as the command line and the environment spell them. Reads text; looks at no file."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterArgument:
    """An adapter to load, and the scale it starts with."""

    path: str
    """Or NAME=PATH."""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MixArgument:
    """A mix to define: its name, and its adapters' names with their scales."""

    name: str
    parts: tuple[tuple[str, float], ...]


def paths_at_scale_1(text: str) -> tuple[AdapterArgument, ...]:
    """Read `PATH[,PATH…]`."""
    return tuple(AdapterArgument(path) for path in text.split(",") if path)


def paths_with_scales(text: str) -> tuple[AdapterArgument, ...]:
    """Read `PATH:SCALE[,PATH:SCALE…]`; the last colon counts, so that a path may hold colons. Raises ValueError."""
    pairs = (_with_scale(item, "PATH:SCALE") for item in filter(None, text.split(",")))
    return tuple(AdapterArgument(path, scale) for path, scale in pairs)


def read_mixes(text: str) -> tuple[MixArgument, ...]:
    """Read `NAME=ADAPTER:SCALE[,ADAPTER:SCALE…][;NAME=…]`. Raises ValueError."""
    mixes = []
    for item in filter(None, text.split(";")):
        name, _, parts = item.partition("=")
        if not name or not parts:
            raise ValueError(f"wants NAME=ADAPTER:SCALE[,ADAPTER:SCALE…], but got {item!r}")
        mixes.append(MixArgument(name, tuple(_with_scale(part, "ADAPTER:SCALE") for part in parts.split(","))))
    return tuple(mixes)


def _with_scale(item: str, form: str) -> tuple[str, float]:
    text, _, scale = item.rpartition(":")
    try:
        number = float(scale)
    except ValueError:
        number = math.nan
    if not text or not math.isfinite(number):
        raise ValueError(f"wants {form} with a finite SCALE, but got {item!r}")
    return text, number
