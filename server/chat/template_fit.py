"""The messages of a chat as one template is to have them: where it wants the system's text, thoughts and parts.

The rules are llama-server's. How calls of tools are given is decided in server/chat/tools.py.
"""

from collections.abc import Sequence

from model.tokens.chat_template import ChatTemplate
from model.tokens.reply_layout import ThoughtsPlace, with_thoughts
from server.chat.messages import Message

_TRIMMED = "You have access to the following functions in JSONSchema format"
"""Words of StepFun's template: its models think in circles where texts begin or end with white space."""

_GEMMA_TURN, _GEMMA_TURN_END = "<|turn>model\n", "<turn|>\n"


def texts_for_template(template: ChatTemplate, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the texts that they are to have. The system's goes in front of the next message where
    the template takes none from it.
    """
    texts = [_trimmed(message) for message in messages] if _TRIMMED in template.source else list(messages)
    if not texts or texts[0]["role"] != "system" or template.takes_system_messages:
        return texts
    return [_with_text_before(texts[0], texts[1]), *texts[2:]] if len(texts) > 1 else []


def fields_for_template(template: ChatTemplate, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with contents and thoughts where, and in the form in which, the template looks for them."""
    placed = [_with_thoughts_in_place(template, message) for message in messages]
    return [_in_parts(message) for message in placed] if template.needs_parts else placed


def with_open_turn(prompt: str) -> str:
    """Return a prompt for a reply with the reply's turn open: templates of Gemma 4 leave it out behind results of tools
    where a text stood beside the calls.
    """
    return prompt + _GEMMA_TURN if prompt.endswith(_GEMMA_TURN_END) else prompt


def _trimmed(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{**part, "text": part["text"].strip()} for part in content]}
    texts = {"content": content, "reasoning_content": message.get("reasoning_content")}
    return {**message, **{name: text.strip() for name, text in texts.items() if isinstance(text, str)}}


def _with_text_before(system: Message, message: Message) -> Message:
    content, text = message.get("content") or "", system["content"]
    if isinstance(text, list) or isinstance(content, list):
        return {**message, "content": [*_parts(text), *_parts(content)]}
    return {**message, "content": f"{text}\n{content}"}


def _with_thoughts_in_place(template: ChatTemplate, message: Message) -> Message:
    thoughts, thinking = message.get("reasoning_content"), template.reply_layout.thinking
    if not isinstance(thoughts, str) or thinking is None or thinking.place is ThoughtsPlace.REASONING_CONTENT:
        return message
    return with_thoughts(message, thoughts, thinking.place)


def _in_parts(message: Message) -> Message:
    return {**message, "content": _parts(message["content"])}


def _parts(content: object) -> list[object]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content}]
