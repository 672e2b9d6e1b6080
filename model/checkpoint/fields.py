"""Typed access to a file's metadata (JSON or GGUF): each value in its type, or an error that names the field.

An absent field and JSON's null are the same thing here.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from model.checkpoint.config import CheckpointError


class Fields:
    """The metadata of one file. `source` stands before a field's name in messages, `prefix` before it in the file."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self._values = values
        self._source = source
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._values

    def get(self, name: str) -> object:
        """Return the raw value, None where the field is absent."""
        return self._values.get(self._prefix + name)

    def error(self, name: str, wanted: str) -> CheckpointError:
        """Return the refusal of the field's value."""
        found = f"is {shorten(self.get(name))}" if self.get(name) is not None else "is missing"
        return CheckpointError(f"{self._source}: {self._prefix}{name} {found}; {wanted}")

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int | None = None) -> int:
        """Return a whole number from `minimum` to `maximum`; without a default the field must be there."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"a whole number of at least {minimum} is needed")
        if maximum is not None and value > maximum:
            raise self.error(name, f"a whole number of at most {maximum} is needed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number greater than 0; without a default the field must be there."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(name, "a finite number greater than 0 is needed")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false is needed")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; without a default the field must be there."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a string is needed")
        return value

    def refuse_unless(self, neutral: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse each named field whose value is none of its neutral ones: those at which it changes nothing."""
        for name, values in neutral.items():
            value = self.get(name)
            if value is not None and value not in values:
                wanted = " or ".join([*(repr(value) for value in values), "its absence"])
                raise self.error(name, f"this is not supported, only {wanted} is")


def read_json_object(path: Path) -> Mapping[str, object]:
    """Return the object that a JSON file holds. Raises CheckpointError naming the file."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable JSON file: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: a JSON object is needed, found {shorten(values)}")
    return values


def shorten(value: object) -> str:
    """Return a value as a message shows it: on one line, and no longer than a message should be."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    """Return a text with what cannot be shown, or sent as UTF-8, escaped: line ends, control characters, surrogates."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
