"""How settings are spelled on the command line, and the types that several of them have."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Flag:
    """How a setting is spelled on the command line."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None


def flag(*names: str, help: str, metavar: str | None = None) -> Flag:  # noqa: A002
    """Return the spelling of a setting, the short name first."""
    return Flag(names, help, metavar)


Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
