"""Calls that are a name and the arguments as JSON, with words around them: newer Mistral models, DeepSeek, Kimi,
functionary.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from server.tools.argument_schema import arguments_schema, json_rule
from server.tools.call import Call
from server.tools.fields import Tool
from server.tools.notation import literal
from server.tools.source import Source, Steps

_NUMBERED = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class NamedJson:
    """The name, words, and JSON."""

    before_arguments: str
    before_name: str = ""
    behind_arguments: str = ""
    id_mark: str = ""
    """May stand behind the name, with an id that is not read."""
    is_numbered: bool = False
    """Whether the name is written as `functions.name:0`, which is the id of the call as well."""

    @property
    def head(self) -> str:
        """What every call begins with; empty where that is its name."""
        return self.before_name

    @property
    def markers(self) -> tuple[str, ...]:
        """Words in calls that may be tokens of their own."""
        return tuple(word for word in (self.before_name, self.before_arguments, self.id_mark) if word)

    def read(self, source: Source, call: Call) -> Steps[None]:
        """Read one call. Raises NoCall."""
        yield from source.blank()
        if self.before_name:
            yield from source.expect(self.before_name)
        written, _ = yield from source.until(self.before_arguments)
        name = (written.partition(self.id_mark)[0] if self.id_mark else written).strip()
        numbered = _NUMBERED.fullmatch(name) if self.is_numbered else None
        if numbered is None:
            call.start(name)
        else:
            call.start(numbered[1], name)
        yield from source.json(call.add)
        if self.behind_arguments:
            yield from source.blank()
            yield from source.found(self.behind_arguments)

    def rules(self, tool: Tool, rule: str) -> Mapping[str, str]:
        """Return the rules of calls of `tool`."""
        name = literal(f"{self.before_name}{'functions.' if self.is_numbered else ''}{tool.name}")
        number = ' ":" /[0-9]{1,3}/' if self.is_numbered else ""
        behind = f" space {literal(self.behind_arguments)}" if self.behind_arguments else ""
        return {
            rule: f"{name}{number} {literal(self.before_arguments)} {rule}_arguments{behind}",
            f"{rule}_arguments": json_rule(arguments_schema(tool.parameters)),
        }
