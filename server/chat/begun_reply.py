"""What a reply begins with before the model's first token: the text of an assistant's message that it continues, and
what says that there is no thinking.

Written as the model's chat template writes it into a conversation, so that the model sees what it was trained with.
"""

from collections.abc import Sequence

from model.reply_layout import ThinkingLayout
from server.chat.messages import Message, read_text
from server.errors import FieldInvalid
from server.replies.reasoning import ReasoningTags
from server.schemas import ChatFields


def end_unwanted_thinking(prompt: str, tags: ReasoningTags | None, *, thinks: bool) -> tuple[str, str]:
    """Return a prompt up to the reply, and the thinking that the template has begun in the reply, ended where the model
    is not to think.
    """
    if tags is None or not prompt.rstrip().endswith(tags.start):
        return prompt, ""
    index = prompt.rindex(tags.start)
    return prompt[:index], prompt[index:] + ("" if thinks else tags.end)


def begin_reply(prompt: str, message: Message, thinking: ThinkingLayout | None, content_lead: str) -> tuple[str, str]:
    """Return the prompt up to the reply, and the message that the reply continues. Where nothing was thought, that is
    written, too, unless the message begins with thinking itself or the prompt says so already.
    """
    content, thoughts = str(message.get("content") or ""), message.get("reasoning_content")
    if thinking is None:
        return prompt, content_lead + content
    head = thinking.without_begun(prompt)
    if thoughts and not content:
        return head, f"{thinking.start}{thoughts}"
    if not thoughts and (content.lstrip().startswith(thinking.start.strip()) or thinking.has_ended(head)):
        return head, content
    return head, f"{thinking.start}{thoughts or ''}{thinking.end}{content}"


def is_empty(message: Message) -> bool:
    """Whether a message has nothing to continue."""
    return not (message.get("content") or message.get("reasoning_content"))


def message_to_continue(messages: Sequence[Message], body: ChatFields) -> Message | None:
    """Return the message whose text the reply is to continue, None where it starts afresh. Raises FieldInvalid."""
    if body.add_generation_prompt and body.continue_final_message:
        raise FieldInvalid(
            "continue_final_message", "Cannot set both add_generation_prompt and continue_final_message to true."
        )
    is_assistant = [message["role"] == "assistant" for message in messages[-2:]]
    if not is_assistant or not is_assistant[-1]:
        if body.continue_final_message:
            raise FieldInvalid("continue_final_message", "the last message must be the assistant's")
        return None
    if not body.add_generation_prompt and not body.continue_final_message:
        return None
    if is_assistant == [True, True]:
        raise FieldInvalid("messages", "Cannot have 2 or more assistant messages at the end of the list.")
    if messages[-1].get("tool_calls"):
        raise FieldInvalid("messages", "Cannot continue an assistant message that contains tool calls.")
    sent = body.messages[-1] if body.messages else None
    if isinstance(sent, dict) and isinstance(sent.get("content"), list):
        return messages[-1] | {"content": read_text(sent["content"], "messages", between="\n\n")}
    return messages[-1]
