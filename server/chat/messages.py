"""The messages of a chat, as OpenAI's clients send them: which shapes are taken, and what is said about others.

The rules are llama-server's. A message keeps the fields that nobody here knows, for a template may read them.
"""

import json
from collections.abc import Mapping, Sequence

from server.errors import FieldInvalid
from server.fields import json_type
from server.tools.fields import function_in

Message = dict[str, object]
_TEXT_FIELDS = ("reasoning_content", "tool_call_id", "name")


def read_message(message: object, field: str, *, keeps_parts: bool = False) -> Message:
    """Return a message with its content as text, or, with `keeps_parts`, as the parts that a user or the system sent.
    The arguments of its calls are JSON texts. Raises FieldInvalid.
    """
    if not isinstance(message, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(message)}")
    role = message.get("role")
    if not isinstance(role, str):
        raise FieldInvalid(f"{field}.role", f"must be a string, but is {json_type(role)}")
    if role == "developer":  # OpenAI's newer name, which few templates know
        role = "system"
    content = message.get("content")
    if content is None and role != "assistant":
        raise FieldInvalid(f"{field}.content", "All non-assistant messages must contain 'content'")
    if "content" not in message and not message.get("tool_calls"):
        raise FieldInvalid(f"{field}.content", "Assistant message must contain either 'content' or 'tool_calls'")
    for name in _TEXT_FIELDS:
        if not isinstance(message.get(name), str | None):
            raise FieldInvalid(f"{field}.{name}", f"must be a string, but is {json_type(message[name])}")
    read = {**message, "role": role, "content": "" if content is None else read_text(content, f"{field}.content")}
    if keeps_parts and role in ("user", "system") and isinstance(content, list):
        read["content"] = [{"type": "text", "text": part["text"]} for part in content]
    if message.get("tool_calls") is not None:
        read["tool_calls"] = _read_calls(message["tool_calls"], f"{field}.tool_calls")
    return read


def _read_calls(calls: object, field: str) -> list[Message]:
    if not isinstance(calls, list):
        raise FieldInvalid(field, f"must be an array, but is {json_type(calls)}")
    return [_read_call(call, f"{field}[{index}]") for index, call in enumerate(calls)]


def _read_call(sent: object, field: str) -> Message:
    call, function = function_in(sent, field)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise FieldInvalid(f"{field}.function.name", f"must be a string, but is {json_type(name)}")
    if not isinstance(arguments, str | dict):
        raise FieldInvalid(
            f"{field}.function.arguments", f"must be a string or an object, but is {json_type(arguments)}"
        )
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": written}}


def read_text(content: object, field: str, part_types: Sequence[str] = ("text",), between: str = "\n") -> str:
    """Return the text of a message's content: a string, or parts of these types, by default a line each. Raises
    FieldInvalid.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldInvalid(field, f"must be a string or an array of parts, but is {json_type(content)}")
    return between.join(read_part(part, f"{field}[{index}]", part_types) for index, part in enumerate(content))


def read_part(part: object, field: str, part_types: Sequence[str]) -> str:
    """Return the text of a part of one of these types. Raises FieldInvalid."""
    if not isinstance(part, Mapping):
        raise FieldInvalid(field, f"must be an object, but is {json_type(part)}")
    kind = part.get("type")
    if kind not in part_types:
        reason = "image input is not supported; " if isinstance(kind, str) and "image" in kind else ""
        supported = " and ".join(f'"{part_type}"' for part_type in part_types)
        raise FieldInvalid(f"{field}.type", f"{reason}only {supported} is supported, but got {kind!r}")
    text = part.get("text")
    if not isinstance(text, str):
        raise FieldInvalid(f"{field}.text", f"must be a string, but is {json_type(text)}")
    return text
