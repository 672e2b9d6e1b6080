"""From chat messages to the text of a prompt: how tools and thinking get into it, how a trailing answer is continued,
and in which form the reply is to be read.

The rules are llama-server's. The template is the model's or an adapter's, rendered by model/tokens/chat_template.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from model.tokens.chat_template import ChatTemplate
from model.tokens.reply_layout import ThinkingLayout
from server.aside import in_proportion
from server.chat.begun_reply import begin_reply, end_unwanted_thinking, message_to_continue
from server.chat.messages import read_message
from server.chat.template_fit import fields_for_template, texts_for_template, with_open_turn
from server.chat.tools import messages_for_template
from server.errors import BodyInvalid, FeatureOff, FieldInvalid
from server.fields import json_type
from server.replies.reasoning import HARMONY_TAGS, ReasoningTags, is_open, tags_in
from server.replies.reasoning_budget import ReasoningBudget
from server.reply import ReplyForm
from server.schemas import ChatFields
from server.settings import Settings
from server.tools.fields import ToolUse, read_tool_use
from server.tools.formats import format_of


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The prompt of a conversation, and how its reply is to be read; None: it is all text."""

    prompt: str
    form: ReplyForm | None
    use: ToolUse
    budget: ReasoningBudget | None
    """Of thinking; None: there is no limit, or no thinking."""


async def rendered_chat(
    template: ChatTemplate | None, body: ChatFields, settings: Settings, *, is_constrained: bool = False
) -> RenderedChat:
    """Do as `render_chat` does; a long conversation delays nobody's tokens."""

    def render() -> RenderedChat:
        return render_chat(template, body, settings, is_constrained=is_constrained)

    return await in_proportion(render, body.messages, body.tools, body.chat_template_kwargs)


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
    thinking = template.reply_layout.thinking or (None if tags is None else ThinkingLayout(tags.start, tags.end))
    thinks = _thinking_wanted(body, settings, is_known=thinking is not None)
    thinks = thinks and not (is_constrained and _reasoning_format(body, settings) == "none")
    last = message_to_continue(messages, body, settings)
    history = texts_for_template(template, messages if last is None else messages[:-1])
    prompt = template.render(
        fields_for_template(template, messages_for_template(template, calls, history, use)),
        add_generation_prompt=body.add_generation_prompt or last is not None,
        tools=None if calls.is_generic and use.callable else [tool.as_json() for tool in use.tools],
        variables=_variables(body, settings, thinks=thinks),
    )
    if body.add_generation_prompt or last is not None:
        prompt = with_open_turn(prompt)
    if last is None or last.is_empty:
        head, begun = end_unwanted_thinking(prompt, tags, thinks=thinks)
    else:
        head, begun = begin_reply(prompt, last, thinking, template.reply_layout.content_lead)
    reply = ReplyForm(
        reasoning=None if _reasoning_format(body, settings) == "none" else tags,
        is_reasoning_begun=tags is not None and is_open(begun, tags),
        may_think=thinks and not begun and tags is not None and not head.rstrip().endswith(tags.end),
        keeps_reasoning=_reasoning_format(body, settings) == "deepseek-legacy",
        calls=calls if use.callable else None,
        tools=use.callable,
        has_channels=tags == HARMONY_TAGS,
        begun=begun,
    )
    is_text = reply.reasoning is None and reply.calls is None and not reply.has_channels
    budget = None if tags is None else _budget(body, settings, tags, is_begun=reply.is_reasoning_begun)
    return RenderedChat(head + begun, None if is_text else reply, use, budget)


def _budget(body: ChatFields, settings: Settings, tags: ReasoningTags, *, is_begun: bool) -> ReasoningBudget | None:
    num_tokens = settings.reasoning_budget if body.reasoning_budget_tokens < 0 else body.reasoning_budget_tokens
    sent = body.reasoning_budget_message
    message = settings.reasoning_budget_message if sent is None else sent
    return None if num_tokens < 0 else ReasoningBudget(num_tokens, tags, is_begun, message)


def _variables(body: ChatFields, settings: Settings, *, thinks: bool) -> dict[str, object]:
    wanted = {
        "preserve_reasoning": settings.reasoning_preserve,
        **settings.chat_template_kwargs,
        **body.chat_template_kwargs,
        "enable_thinking": thinks,
    }
    if body.reasoning_effort == "none":
        wanted.pop("reasoning_effort", None)
    elif body.reasoning_effort is not None:
        wanted["reasoning_effort"] = body.reasoning_effort
    return {**_synonyms(wanted), **wanted}


def _synonyms(wanted: Mapping[str, object]) -> dict[str, object]:
    """Return what else templates call the variables that have one name in requests."""
    is_kept, effort = wanted["preserve_reasoning"], wanted.get("reasoning_effort")
    synonyms: dict[str, object] = {"reasoning_strength": effort} if isinstance(effort, str) and effort else {}
    if isinstance(is_kept, bool):
        synonyms["preserve_thinking"] = is_kept
        synonyms |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not is_kept)
    return synonyms


def _thinking_wanted(body: ChatFields, settings: Settings, *, is_known: bool) -> bool:
    """Whether the template is to be told to think: by default, where it is known what thinking looks like."""
    if body.reasoning_effort == "none":
        return False
    wanted = (settings.chat_template_kwargs | body.chat_template_kwargs).get("enable_thinking")
    if not isinstance(wanted, bool | None):
        raise FieldInvalid("chat_template_kwargs.enable_thinking", f"type must be boolean, but is {json_type(wanted)}")
    return is_known and settings.reasoning != "off" if wanted is None else wanted


def _reasoning_format(body: ChatFields, settings: Settings) -> str:
    return settings.reasoning_format if body.reasoning_format is None else body.reasoning_format
