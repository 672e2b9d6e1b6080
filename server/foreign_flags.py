"""Flags of llama-server's that are no settings here: those that ask for what is so anyway, and those that cannot be
honoured, with the reason. The values of the former are checked, and lead to nothing.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleFlag:
    """A flag that is taken and changes nothing, with the reason why that is right."""

    names: tuple[str, ...]
    reason: str
    value: Callable[[str], object] | None = None
    """Reads its value, and raises ValueError for a wrong one; None where it has none."""


def _cache_limit(text: str) -> int:
    number = int(text)
    if number < -1:
        raise ValueError
    return number


def _on_off_auto(text: str) -> str:
    if text not in ("on", "off", "auto"):
        raise ValueError
    return text


IDLE_FLAGS = (
    IdleFlag(("--jinja", "--no-jinja"), "chat templates are always rendered by Jinja"),
    IdleFlag(("--offline",), "nothing is ever downloaded"),
    IdleFlag(("-cb", "--cont-batching"), "prompts and answers are always batched as they come"),
    IdleFlag(("-fa", "--flash-attn"), "the device decides how attention is computed", _on_off_auto),
    IdleFlag(("--swa-full",), "layers with a sliding window always keep their whole KV"),
    IdleFlag(("-cram", "--cache-ram"), "no memory beside the KV cache keeps prompts", _cache_limit),
    IdleFlag(("--no-cache-idle-slots",), "KV is cached by what was computed, not by slots"),
    IdleFlag(("--no-ui", "--no-webui"), "there is no web interface"),
)

REFUSED_FLAGS = {
    ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"): "the KV cache has the type that --dtype gives it",
    ("-nocb", "--no-cont-batching"): "prompts and answers are always batched as they come",
    ("-to", "--timeout"): "what bounds an answer is --request-timeout",
    ("--ui", "--webui"): "there is no web interface",
}
"""Why each cannot be honoured."""


class _ChangeNothing(argparse.Action):
    def __call__(self, *_: object) -> None:
        """Leave no attribute behind."""


class _Refuse(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"argument {option_string} is not supported: {REFUSED_FLAGS[tuple(self.option_strings)]}")


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take what changes nothing, and refuse by its reason what cannot be honoured."""
    group = parser.add_argument_group("flags of llama-server's that change nothing here")
    for idle in IDLE_FLAGS:
        if idle.value is None:
            action = group.add_argument(*idle.names, action=_ChangeNothing, nargs=0)
        else:
            action = group.add_argument(*idle.names, action=_ChangeNothing, type=idle.value, metavar="VALUE")
        action.dest, action.default, action.help = argparse.SUPPRESS, argparse.SUPPRESS, idle.reason
    for names in REFUSED_FLAGS:
        parser.add_argument(*names, action=_Refuse, nargs="?", help=argparse.SUPPRESS, default=argparse.SUPPRESS)
