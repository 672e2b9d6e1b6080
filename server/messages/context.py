"""What of earlier turns a message is not to see any more: Anthropic's `context_management`.

Source: Anthropic's API reference, "context editing". Of its edits the one that forgets thoughts is made; the one that
forgets results of tools beyond a size is refused, for whoever relies on it must know that it does not happen.
"""

from collections.abc import Mapping, Sequence

from server.errors import FieldInvalid
from server.fields import json_type

_FORGET_THOUGHTS = "clear_thinking_20251015"
_DEFAULT_TURNS = 1


def num_kept_thoughts(context_management: Mapping[str, object] | None) -> int | None:
    """Return of how many turns, the latest, thoughts are kept; None: of all. Raises FieldInvalid."""
    edits = (context_management or {}).get("edits")
    if edits is None:
        return None
    if not isinstance(edits, list):
        raise FieldInvalid("context_management.edits", f"must be an array, but is {json_type(edits)}")
    num_kept = None
    for index, edit in enumerate(edits):
        field = f"context_management.edits[{index}]"
        if not isinstance(edit, dict):
            raise FieldInvalid(field, f"must be an object, but is {json_type(edit)}")
        if edit.get("type") != _FORGET_THOUGHTS:
            raise FieldInvalid(f"{field}.type", f'only "{_FORGET_THOUGHTS}" is supported, but got {edit.get("type")!r}')
        num_kept = _num_turns(edit.get("keep"), f"{field}.keep")
    return num_kept


def _num_turns(keep: object, field: str) -> int | None:
    if keep == "all":
        return None
    if keep is None:
        return _DEFAULT_TURNS
    turns = keep.get("value") if isinstance(keep, dict) and keep.get("type") == "thinking_turns" else None
    if not isinstance(turns, int) or isinstance(turns, bool) or turns < 1:
        wanted = '"all" or {"type": "thinking_turns", "value": a number of at least 1}'
        raise FieldInvalid(field, f"must be {wanted}, but got {keep!r:.200}")
    return turns


def forget_thoughts(messages: Sequence[object], num_kept: int | None) -> list[object]:
    """Return the messages without the thoughts of all but the last `num_kept` of the assistant's that have some."""
    if num_kept is None:
        return list(messages)
    thoughtful = [index for index, message in enumerate(messages) if _has_thoughts(message)]
    forgotten = set(thoughtful[: max(len(thoughtful) - num_kept, 0)])
    return [_without_thoughts(message) if index in forgotten else message for index, message in enumerate(messages)]


def _has_thoughts(message: object) -> bool:
    return isinstance(message, dict) and "reasoning_content" in message


def _without_thoughts(message: object) -> object:
    assert isinstance(message, dict)
    return {name: value for name, value in message.items() if name != "reasoning_content"}
