"""From chat messages to the text of a prompt: how tools and thinking get into it, how a trailing answer is continued,
and in which form the reply is to be read.

The rules are llama-server's. The template is the model's or an adapter's, rendered by model/chat_template.py.
"""

from dataclasses import dataclass
from datetime import datetime

from model.chat_template import ChatTemplate
from server.chat.messages import Message, read_message, read_text
from server.errors import BodyInvalid, FeatureOff, FieldInvalid
from server.fields import json_type
from server.replies.reasoning import ReasoningTags, is_open, tags_in
from server.replies.reasoning_budget import ReasoningBudget
from server.replies.reply import ReplyForm
from server.schemas import ChatFields
from server.settings import Settings
from server.tools.fields import ToolUse, read_tool_use
from server.tools.formats import format_of
from server.tools.prompt import messages_for_template


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The prompt of a conversation, and how its reply is to be read; None: it is all text."""

    prompt: str
    form: ReplyForm | None
    use: ToolUse
    budget: ReasoningBudget | None
    """Of thinking; None: there is no limit, or no thinking."""


def render_chat(
    template: ChatTemplate | None, body: ChatFields, settings: Settings, *, is_constrained: bool = False
) -> RenderedChat:
    """Return the prompt of a conversation, and how its reply is to be read. A trailing assistant message is left open,
    for the model to continue. `is_constrained`: the content is to have a form of its own, so there is no thinking in
    it. Raises RequestError, or TemplateError where the template refuses.
    """
    if template is None:
        raise FeatureOff("this model has no chat template; start the server with --chat-template")
    if body.messages is None:
        raise BodyInvalid("'messages' is required")
    use = read_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    calls, tags = format_of(template), tags_in(template.source)
    keeps_parts = template.takes_parts and not (calls.is_generic and use.callable)
    messages = [
        read_message(message, f"messages[{index}]", keeps_parts=keeps_parts)
        for index, message in enumerate(body.messages)
    ]
    thinks = _thinking_wanted(body, settings) and not (is_constrained and _reasoning_format(body, settings) == "none")
    last = _message_to_continue(messages, body)
    shown = messages_for_template(template, calls, messages if last is None else messages[:-1], use)
    prompt = template.render(
        [_in_parts(message) for message in shown] if template.needs_parts else shown,
        add_generation_prompt=body.add_generation_prompt or last is not None,
        tools=None if calls.is_generic else [tool.as_json() for tool in use.tools],
        variables=_variables(body, thinks=thinks),
    )
    tail = tags.start if tags is not None and prompt.rstrip().endswith(tags.start) else ""
    begun = _begun_reply(tail, tags, last, thinks=thinks)
    reply = ReplyForm(
        reasoning=None if _reasoning_format(body, settings) == "none" else tags,
        is_reasoning_begun=tags is not None and is_open(tail + begun, tags),
        may_think=thinks and not begun and tags is not None and not prompt.rstrip().endswith(tags.end),
        keeps_reasoning=_reasoning_format(body, settings) == "deepseek-legacy",
        calls=calls if use.callable else None,
        tools=use.callable,
    )
    is_text = reply.reasoning is None and reply.calls is None
    budget = None if tags is None else _budget(body, settings, tags, is_begun=reply.is_reasoning_begun)
    return RenderedChat(prompt + begun, None if is_text else reply, use, budget)


def _budget(body: ChatFields, settings: Settings, tags: ReasoningTags, *, is_begun: bool) -> ReasoningBudget | None:
    num_tokens = settings.reasoning_budget if body.reasoning_budget_tokens < 0 else body.reasoning_budget_tokens
    return None if num_tokens < 0 else ReasoningBudget(num_tokens, tags, is_begun, body.reasoning_budget_message)


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _variables(body: ChatFields, *, thinks: bool) -> dict[str, object]:
    now = datetime.now()
    dates = {"datetime": now.strftime("%b %d %Y"), "date_string": now.strftime("%d %b %Y")}  # llama-server's
    # FireFunction's template concatenates `functions`, which llama-server's engine lets pass as nothing.
    variables = {**dates, "functions": "", **body.chat_template_kwargs, "enable_thinking": thinks}
    if body.reasoning_effort == "none":
        variables.pop("reasoning_effort", None)
    elif body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    return variables


def _thinking_wanted(body: ChatFields, settings: Settings) -> bool:
    if body.reasoning_effort == "none":
        return False
    wanted = body.chat_template_kwargs.get("enable_thinking")
    if not isinstance(wanted, bool | None):
        raise FieldInvalid("chat_template_kwargs.enable_thinking", f"type must be boolean, but is {json_type(wanted)}")
    return settings.reasoning != "off" if wanted is None else wanted


def _reasoning_format(body: ChatFields, settings: Settings) -> str:
    return settings.reasoning_format if body.reasoning_format is None else body.reasoning_format


def _begun_reply(tail: str, tags: ReasoningTags | None, last: Message | None, *, thinks: bool) -> str:
    """Return what the reply begins with: the message to continue, and the end of thinking where none is wanted. `tail`
    is the start tag where the template has written it.
    """
    content = "" if last is None else str(last.get("content") or "")
    thoughts = None if last is None else last.get("reasoning_content")
    if tags is None:
        return content
    if thoughts:
        start = "" if tail else f"{tags.start}\n"
        return f"{start}{thoughts}" + (f"\n{tags.end}\n\n{content}" if content else "")
    has_no_thoughts = tail and (content or not thinks)
    return (tags.end if has_no_thoughts else "") + content


def _message_to_continue(messages: list[Message], body: ChatFields) -> Message | None:
    """Return the message whose text the reply is to continue, None where it starts afresh."""
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
