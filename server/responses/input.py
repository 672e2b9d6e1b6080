"""From the items that a response is asked for with to messages of a chat template.

Reasoning, text and calls that follow each other are one message of the assistant, as they were when it was generated.
Source: OpenAI's API reference.
"""

from collections.abc import Sequence
from typing import Any

from server.chat.messages import read_text
from server.errors import FieldInvalid
from server.fields import json_type

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Roles of messages, and what chat templates call them."""


def read_items(items: Sequence[object]) -> list[dict[str, Any]]:
    """Return the messages that the field `input` holds. Raises FieldInvalid."""
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        field = f"input[{index}]"
        if not isinstance(item, dict):
            raise FieldInvalid(field, f"must be an object, but is {json_type(item)}")
        match item.get("type", "message"):
            case "message":
                _add_message(messages, item, field)
            case "function_call":
                _assistant(messages).setdefault("tool_calls", []).append(_read_call(item, field))
            case "function_call_output":
                output = read_text(item.get("output"), f"{field}.output", ("input_text", "output_text"))
                call_id = _string(item, "call_id", field)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case "reasoning":
                thoughts = read_text(item.get("content") or [], f"{field}.content", ("reasoning_text",))
                _assistant(messages)["reasoning_content"] = thoughts
            case kind:
                supported = "message, function_call, function_call_output and reasoning are supported"
                raise FieldInvalid(f"{field}.type", f"only {supported}, but got {kind!r}")
    return messages


def _add_message(messages: list[dict[str, Any]], item: dict[str, Any], field: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise FieldInvalid(f"{field}.role", f"must be one of {', '.join(_ROLES)}, but got {role!r}")
    content = read_text(item.get("content"), f"{field}.content", ("input_text", "output_text"))
    last = messages[-1] if messages else {}
    if role == "assistant" and last.get("role") == "assistant" and not last.get("content"):
        last["content"] = content
    else:
        messages.append({"role": _ROLES[role], "content": content})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that the next item belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _read_call(item: dict[str, Any], field: str) -> dict[str, Any]:
    function = {name: _string(item, name, field) for name in ("name", "arguments")}
    return {"id": _string(item, "call_id", field), "type": "function", "function": function}


def _string(item: dict[str, Any], name: str, field: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise FieldInvalid(f"{field}.{name}", f"must be a string, but is {json_type(value)}")
    return value
