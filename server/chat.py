"""From chat messages to the text of a prompt: which messages are taken, and how a trailing answer is continued.

The rules are llama-server's. The template is the model's or an adapter's, rendered by model/chat_template.py.
"""

from collections.abc import Mapping, Sequence

from model.chat_template import ChatTemplate
from server.errors import BodyInvalid, FeatureOff, FieldInvalid
from server.fields import json_type
from server.schemas import ChatFields


def render_chat(template: ChatTemplate | None, body: ChatFields) -> str:
    """Return the prompt of a conversation. A trailing assistant message is left open, for the model to continue.
    Raises RequestError, or TemplateError where the template refuses.
    """
    if template is None:
        raise FeatureOff("this model has no chat template; start the server with --chat-template")
    if body.messages is None:
        raise BodyInvalid("'messages' is required")
    messages = [_read_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    variables = dict(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    begun = _begun_answer(messages, body)
    if begun is None:
        return template.render(messages, add_generation_prompt=body.add_generation_prompt, variables=variables)
    return template.render(messages[:-1], add_generation_prompt=True, variables=variables) + begun


def _begun_answer(messages: list[dict[str, object]], body: ChatFields) -> str | None:
    """Return the text that the answer is to continue, None where it starts afresh."""
    is_assistant = [message["role"] == "assistant" for message in messages[-2:]]
    if not is_assistant or not is_assistant[-1]:
        if body.continue_final_message:
            raise FieldInvalid("continue_final_message", "the last message must be the assistant's")
        return None
    if not body.add_generation_prompt and not body.continue_final_message:
        return None
    if is_assistant == [True, True]:
        raise FieldInvalid("messages", "Cannot have 2 or more assistant messages at the end of the list.")
    return str(messages[-1].get("content") or "")


def _read_message(message: object, field: str) -> dict[str, object]:
    if not isinstance(message, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(message)}")
    role = message.get("role")
    if not isinstance(role, str):
        raise FieldInvalid(f"{field}.role", f"must be a string, but is {json_type(role)}")
    if message.get("content") is None and role != "assistant":
        raise FieldInvalid(f"{field}.content", "All non-assistant messages must contain 'content'")
    content = message.get("content")
    return {**message, "content": None if content is None else read_text(content, f"{field}.content")}


def read_text(content: object, field: str, part_types: Sequence[str] = ("text",)) -> str:
    """Return the text of a message's content: a string, or parts of these types, a line each. Raises FieldInvalid."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldInvalid(field, f"must be a string or an array of parts, but is {json_type(content)}")
    return "\n".join(_read_part(part, f"{field}[{index}]", part_types) for index, part in enumerate(content))


def _read_part(part: object, field: str, part_types: Sequence[str]) -> str:
    if not isinstance(part, Mapping):
        raise FieldInvalid(field, f"must be an object, but is {json_type(part)}")
    if part.get("type") not in part_types:
        supported = " and ".join(f'"{part_type}"' for part_type in part_types)
        raise FieldInvalid(f"{field}.type", f"only {supported} is supported, but got {part.get('type')!r}")
    text = part.get("text")
    if not isinstance(text, str):
        raise FieldInvalid(f"{field}.text", f"must be a string, but is {json_type(text)}")
    return text
