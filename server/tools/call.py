"""One call of a tool while it is read: its name as soon as that is known, its arguments piece by piece."""

from collections.abc import Collection, Mapping

from server.replies.parts import CallArguments, CallStart, Part, random_id
from server.tools.fields import Tool
from server.tools.source import NoCall


class Call:
    """What the reader of a notation has found out."""

    def __init__(self, index: int, tools: Mapping[str, Tool], *, only_tools: bool, id_length: int) -> None:
        """`only_tools`: it is a call only where it names one of the request's tools. `id_length` of the id that it gets
        where it brings none, 0: any.
        """
        self.has_started = False
        """Whether its name has come, so that it is a call."""
        self.parts: list[Part] = []
        """What is certain, and was not taken yet."""
        self._index = index
        self._tools = tools
        self._only_tools = only_tools
        self._id_length = id_length

    def start(self, name: str, call_id: str = "") -> None:
        """The name has come. Raises NoCall where it calls nothing."""
        if not name or (self._only_tools and name not in self._tools):
            raise NoCall
        self.has_started = True
        self.parts.append(CallStart(self._index, call_id or self._new_id(), name))

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name; None where the request has none."""
        return self._tools.get(name)

    def add(self, arguments: str) -> None:
        """A piece of the arguments has come."""
        self.parts.append(CallArguments(self._index, arguments))

    def take(self) -> list[Part]:
        """Return the parts that were not taken yet."""
        parts, self.parts = self.parts, []
        return parts

    def _new_id(self) -> str:
        return random_id(self._id_length) if self._id_length else "call_" + random_id(24)


def by_name(tools: Collection[Tool]) -> Mapping[str, Tool]:
    """Return the tools by their names."""
    return {tool.name: tool for tool in tools}
