"""What a reply begins with before the model's first token: the text of an assistant's message that it continues, and
what says that there is no thinking.

Written as the model's chat template writes it into a conversation, so that the model sees what it was trained with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.tokens.reply_layout import ThinkingLayout
from server.chat.messages import Message, read_text
from server.errors import FieldInvalid
from server.replies.reasoning import ReasoningTags
from server.schemas import ChatFields
from server.settings import Settings


def end_unwanted_thinking(prompt: str, tags: ReasoningTags | None, *, thinks: bool) -> tuple[str, str]:
    """Return a prompt up to the reply, and the thinking that the template has begun in the reply, ended where the model
    is not to think.
    """
    if tags is None or not prompt.rstrip().endswith(tags.start):
        return prompt, ""
    index = prompt.rindex(tags.start)
    return prompt[:index], prompt[index:] + ("" if thinks else tags.end)


@dataclass(frozen=True, slots=True)
class Begun:
    """The message that a reply continues."""

    content: str
    thoughts: str
    is_thought: bool
    """Whether the thoughts go on; else they are over, if there are any, and the content goes on."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is there yet."""
        return not (self.content or self.thoughts)


def begin_reply(prompt: str, begun: Begun, thinking: ThinkingLayout | None, content_lead: str) -> tuple[str, str]:
    """Return the prompt up to the reply, and what the reply continues. Where nothing was thought, that is written, too,
    unless the message begins with thinking itself or the prompt says so already. Raises FieldInvalid.
    """
    content, thoughts = begun.content, begun.thoughts
    if thinking is None:
        if begun.is_thought and content:
            raise FieldInvalid("continue_final_message", "this model's chat template shows no thinking to continue")
        return prompt, content_lead + content
    head = thinking.without_begun(prompt)
    if begun.is_thought:
        return head, f"{thinking.start}{thoughts}"
    if not thoughts and (content.lstrip().startswith(thinking.start.strip()) or thinking.has_ended(head)):
        return head, content
    return head, f"{thinking.start}{thoughts}{thinking.end}{content}"


def message_to_continue(messages: Sequence[Message], body: ChatFields, settings: Settings) -> Begun | None:
    """Return the message that the reply is to continue, None where it starts afresh. Raises FieldInvalid."""
    wanted = body.continue_final_message
    if body.add_generation_prompt and wanted:
        raise FieldInvalid(
            "continue_final_message", "Cannot set both add_generation_prompt and continue_final_message to true."
        )
    is_assistant = [message["role"] == "assistant" for message in messages[-2:]]
    if not is_assistant or not is_assistant[-1]:
        if wanted:
            raise FieldInvalid("continue_final_message", "the last message must be the assistant's")
        return None
    if not wanted and not (body.add_generation_prompt and settings.prefill_assistant):
        return None
    if is_assistant == [True, True] and not wanted:
        raise FieldInvalid("messages", "Cannot have 2 or more assistant messages at the end of the list.")
    if messages[-1].get("tool_calls"):
        raise FieldInvalid("messages", "Cannot continue an assistant message that contains tool calls.")
    return _begun(messages[-1], body)


def _begun(message: Message, body: ChatFields) -> Begun:
    sent = body.messages[-1] if body.messages else None
    content, thoughts = str(message.get("content") or ""), str(message.get("reasoning_content") or "")
    if isinstance(sent, dict) and isinstance(sent.get("content"), list):
        content = read_text(sent["content"], "messages", between="\n\n")
    is_thought = bool(thoughts) and not content
    if isinstance(body.continue_final_message, str):
        is_thought = body.continue_final_message == "reasoning_content"
    return Begun(content, thoughts, is_thought)
