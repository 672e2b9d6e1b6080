"""Whatever JSON a chat's body holds, in any dialect, it makes a prompt or is refused: no other error."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.chat_template import ChatTemplate, TemplateError
from server.chat.prompt import render_chat
from server.errors import RequestError
from server.messages.schema import MessagesBody, messages_chat
from server.responses.schema import ResponsesBody, responses_chat
from server.schemas import ChatBody, ChatFields, parse
from tests.server.chat_templates import HERMES_THINKING, MISTRAL, PLAIN
from tests.server.fakes import fake_settings

WORDS = (
    *("user", "assistant", "system", "tool", "function", "text", "tool_use", "tool_result", "thinking", "message"),
    *("function_call", "function_call_output", "reasoning", "auto", "any", "none", "required", "enabled", "{}", "f"),
)
NAMES = (
    *("role", "content", "type", "name", "text", "id", "input", "arguments", "function", "tool_calls", "parameters"),
    *("tool_call_id", "tool_use_id", "call_id", "output", "thinking", "summary", "input_schema", "budget_tokens"),
)
FIELDS = (
    *("messages", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "thinking", "reasoning_effort"),
    *("system", "instructions", "chat_template_kwargs", "reasoning_format", "reasoning_budget_tokens"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), min_size=1, max_size=3)
TEMPLATES = [ChatTemplate(source) for source in (HERMES_THINKING, MISTRAL, PLAIN)]


def chat_of_chat(body: dict[str, object]) -> ChatFields:
    """Read a body of /v1/chat/completions."""
    return parse(ChatBody, body)


def chat_of_responses(body: dict[str, object]) -> ChatFields:
    """Read a body of /v1/responses."""
    return responses_chat(parse(ResponsesBody, body))


def chat_of_messages(body: dict[str, object]) -> ChatFields:
    """Read a body of /v1/messages."""
    return messages_chat(parse(MessagesBody, body | {"max_tokens": 1}))


@pytest.mark.parametrize("read", [chat_of_chat, chat_of_responses, chat_of_messages])
@given(body=BODIES, messages=MESSAGES, template=st.sampled_from(TEMPLATES))
@settings(deadline=None)
def test_a_body_makes_a_prompt_or_is_refused(
    read: Callable[[dict[str, object]], ChatFields],
    body: dict[str, object],
    messages: list[dict[str, object]],
    template: ChatTemplate,
) -> None:
    field = "input" if read is chat_of_responses else "messages"
    with suppress(RequestError, TemplateError):
        assert render_chat(template, read({field: messages, **body}), fake_settings()).prompt
