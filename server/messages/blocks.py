"""From the blocks of Anthropic's messages to messages of a chat template: one for what was said, one for each result of
a tool.
"""

import json
from collections.abc import Mapping

from server.chat.messages import Message, read_part
from server.chat.messages import read_text as read_parts
from server.errors import FieldInvalid
from server.fields import json_type

_TYPES = {"user": ("text", "tool_result"), "assistant": ("text", "thinking", "tool_use")}


def read_text(content: object, field: str) -> str:
    """Return the text of a string, or of blocks of text. Raises FieldInvalid."""
    return read_parts(content, field)


def read_message(message: object, field: str) -> list[Message]:
    """Return the messages that one is: the results of tools before or after what is said beside them, as the first
    block has it. Raises FieldInvalid.
    """
    if not isinstance(message, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(message)}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _TYPES:
        raise FieldInvalid(f"{field}.role", f"must be one of {', '.join(_TYPES)}, but got {role!r}")
    if isinstance(content, str) or not isinstance(content, list):
        return [{"role": role, "content": read_text(content, f"{field}.content")}]
    blocks = [
        (_of_role(block, role, f"{field}.content[{i}]"), f"{field}.content[{i}]") for i, block in enumerate(content)
    ]
    said = _said(role, blocks)
    results = [_read_result(block, place) for block, place in blocks if block["type"] == "tool_result"]
    if said is None:
        return results or [{"role": role, "content": ""}]
    return [*results, said] if blocks[0][0]["type"] == "tool_result" else [said, *results]


def _of_role(block: object, role: str, field: str) -> Mapping[str, object]:
    if not isinstance(block, dict) or block.get("type") not in _TYPES[role]:
        read_part(block, field, _TYPES[role])
    assert isinstance(block, dict)
    return block


def _said(role: str, blocks: list[tuple[Mapping[str, object], str]]) -> Message | None:
    """Return the message of all blocks but results; None where there are no others."""
    texts = [read_part(block, place, ("text",)) for block, place in blocks if block["type"] == "text"]
    thoughts = [_string(block, "thinking", place) for block, place in blocks if block["type"] == "thinking"]
    calls = [_read_use(block, place) for block, place in blocks if block["type"] == "tool_use"]
    if not (texts or thoughts or calls):
        return None
    message: Message = {"role": role, "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _read_use(block: Mapping[str, object], field: str) -> Message:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise FieldInvalid(f"{field}.input", f"must be an object, but is {json_type(arguments)}")
    function = {"name": _string(block, "name", field), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": _string(block, "id", field), "type": "function", "function": function}


def _read_result(block: Mapping[str, object], field: str) -> Message:
    content = block.get("content")
    text = "" if content is None else read_text(content, f"{field}.content")
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", field), "content": text}


def _string(block: Mapping[str, object], name: str, field: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise FieldInvalid(f"{field}.{name}", f"must be a string, but is {json_type(value)}")
    return value
