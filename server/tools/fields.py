"""The tools that a request offers, and whether the model must call one: `tools`, `tool_choice`, `parallel_tool_calls`.

Source: OpenAI's API reference, with llama-server's rule that a tool has the type function, and a function a name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from server.errors import FieldInvalid
from server.fields import json_type

Choice: TypeAlias = Literal["none", "auto", "required"]
_CHOICES: Mapping[str, Choice] = {"none": "none", "auto": "auto", "required": "required"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to be called."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of the arguments."""

    def as_json(self) -> Mapping[str, object]:
        """Return it as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about tools."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    forced: str | None = None
    """The name of the one tool that must be called; `choice` is "required" then."""
    is_parallel: bool = True
    """Whether there may be several calls in one reply."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.choice == "none":
            return ()
        return tuple(tool for tool in self.tools if self.forced in (None, tool.name))


def read_tool_use(tools: Sequence[object] | None, choice: object, is_parallel: bool | None) -> ToolUse:
    """Return what the fields of a chat say, None being absent. Raises FieldInvalid."""
    read = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    names = [tool.name for tool in read]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise FieldInvalid(f"tools[{index}].function.name", f"must not repeat, but {name!r} does")
    wanted, forced = _read_choice(choice)
    if wanted == "required" and not read:
        raise FieldInvalid("tool_choice", "there are no tools to call")
    if forced is not None and forced not in names:
        raise FieldInvalid("tool_choice", f"names {forced!r}, which is not among the tools")
    return ToolUse(read, wanted, forced, is_parallel is not False)


def _read_tool(tool: object, field: str) -> Tool:
    _, function = function_in(tool, field)
    return read_function(function, f"{field}.function", "parameters")


def read_function(function: Mapping[str, object], field: str, schema_field: str) -> Tool:
    """Return the tool that an object describes, with the schema of its arguments in `schema_field`. Raises
    FieldInvalid.
    """
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not name:
        raise FieldInvalid(f"{field}.name", f"must be a string that is not empty, but got {name!r}")
    if description is not None and not isinstance(description, str):
        raise FieldInvalid(f"{field}.description", f"must be a string, but is {json_type(description)}")
    parameters = function.get(schema_field)
    if parameters is not None and not isinstance(parameters, dict):
        raise FieldInvalid(f"{field}.{schema_field}", f"must be an object, but is {json_type(parameters)}")
    return Tool(name, description or "", parameters or {"type": "object", "properties": {}})


def _read_choice(choice: object) -> tuple[Choice, str | None]:
    if choice is None:
        return "auto", None
    if isinstance(choice, str) and choice in _CHOICES:
        return _CHOICES[choice], None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)  # the Responses API has the name beside the type
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return "required", name
    raise FieldInvalid(
        "tool_choice",
        f'must be "none", "auto", "required" or an object with the type "function" and a name, but got {choice!r:.200}',
    )


def function_in(value: object, field: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return a tool, or a call of one, and the function that it has. Raises FieldInvalid."""
    if not isinstance(value, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(value)}")
    if value.get("type") != "function":
        raise FieldInvalid(f"{field}.type", f'only "function" is supported, but got {value.get("type")!r}')
    function = value.get("function")
    if not isinstance(function, dict):
        raise FieldInvalid(f"{field}.function", f"must be an object, but is {json_type(function)}")
    return value, function
