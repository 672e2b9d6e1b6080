"""What a way to write a call must tell: how it is read, and what may be generated.

One file for each kind: JSON objects (json_object.py), a name and JSON (named_json.py), tags around parameters
(tagged.py), calls as in Python (pythonic.py). server/tools/formats.py says which family uses which, with which words.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from server.tools.call import Call
from server.tools.fields import Tool
from server.tools.source import Source, Steps


class Notation(Protocol):
    """A kind of notation with the words of a family."""

    @property
    def head(self) -> str:
        """What every call begins with; empty where that is its name."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Words in calls that may be tokens of their own."""

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call. Raises NoCall."""

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rule `rule`, calls of `tool`, and those that it is made of, whose names begin with `rule`, in
        llguidance's language. There is a rule `space` beside them.
        """


def literal(text: str) -> str:
    """Return a text as llguidance's rules have it."""
    return json.dumps(text, ensure_ascii=False)


def in_commas(rule: str, parts: Sequence[tuple[str, bool]], comma: str) -> Mapping[str, str]:
    """Return the rule `{rule}_first_0`, these parts with `comma` between them, and those that it is made of; with each
    part goes whether it must be there.
    """
    rules = {}
    for index, (part, is_required) in enumerate(parts):
        for place, before in (("first", ""), ("more", f"{comma} ")):
            without = "" if is_required else f" | {rule}_{place}_{index + 1}"
            rules[f"{rule}_{place}_{index}"] = f"{before}{part} {rule}_more_{index + 1}{without}"
    return {**rules, f"{rule}_first_{len(parts)}": '""', f"{rule}_more_{len(parts)}": '""'}
