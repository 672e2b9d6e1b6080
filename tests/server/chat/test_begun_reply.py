"""What a reply begins with, in the words of its template."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.chat_template import ChatTemplate
from server.chat.prompt import RenderedChat, render_chat
from server.errors import FieldInvalid
from server.schemas import ChatFields, parse
from tests.model.tokens.test_reply_layout import BEGINS_THINKING, CHANNELS, QWEN, RECIPIENTS
from tests.server import chat_templates
from tests.server.fakes import fake_settings

SETTINGS = fake_settings()
USER = {"role": "user", "content": "hi"}
SO: dict[str, object] = {"content": "So"}
THOUGHT: dict[str, object] = {"content": "", "reasoning_content": "hm"}
BOTH: dict[str, object] = {**SO, **THOUGHT, "content": "So"}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@cache
def template_of(source: str) -> ChatTemplate:
    """Compile a template once."""
    return ChatTemplate(source)


def render(source: str, message: dict[str, object], **body: object) -> RenderedChat:
    """Render a conversation that ends with the assistant's message."""
    fields = parse(ChatFields, {"messages": [USER, {"role": "assistant", **message}], **body})
    return render_chat(template_of(source), fields, SETTINGS)


@pytest.mark.parametrize(
    ("source", "message", "end", "is_begun"),
    [
        (chat_templates.HERMES_THINKING, SO, "<assistant><think></think>So", False),
        (chat_templates.HERMES_THINKING, {"content": "<think>hm"}, "<assistant><think>hm", True),
        (chat_templates.HERMES_THINKING, THOUGHT, "<assistant><think>hm", True),
        (chat_templates.HERMES_THINKING, BOTH, "<assistant><think>hm</think>So", False),
        (chat_templates.THINKING_BEGUN, SO, "<assistant><think></think>So", False),
        (chat_templates.THINKING_BEGUN, THOUGHT, "<assistant><think>hm", True),
        (chat_templates.THINKING_BEGUN, {"content": None}, "<assistant><think>\n", True),
        (QWEN, SO, "<|assistant|><think>\n\n</think>\n\nSo", False),
        (QWEN, BOTH, "<|assistant|><think>\nhm\n</think>\n\nSo", False),
        (BEGINS_THINKING, SO, "<|assistant|><think>\n\n</think>\n\nSo", False),
        (BEGINS_THINKING, THOUGHT, "<|assistant|><think>\nhm", True),
    ],
)
def test_a_reply_that_was_begun_goes_on_where_it_was(
    source: str, message: dict[str, object], end: str, is_begun: bool
) -> None:
    rendered = render(source, message)
    assert rendered.prompt.endswith(end)
    assert rendered.form is not None
    assert rendered.form.is_reasoning_begun is is_begun


@pytest.mark.parametrize(
    ("source", "message", "end"),
    [
        (
            CHANNELS,
            SO,
            "<|assistant|><|channel|>analysis<|message|><|end|><|assistant|><|channel|>final<|message|>So",
        ),
        (CHANNELS, THOUGHT, "<|assistant|><|channel|>analysis<|message|>hm"),
        (RECIPIENTS, SO, "<|assistant|>>>>all\nSo"),
        (chat_templates.PLAIN, SO, "<assistant>So"),
    ],
)
def test_what_a_template_writes_around_a_message_is_written(source: str, message: dict[str, object], end: str) -> None:
    assert render(source, message).prompt.endswith(f"hi{end}" if source != chat_templates.PLAIN else f"hi\n{end}")


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (chat_templates.HERMES_THINKING, "<assistant><think></think>So"),
        ("{{ messages[0].content }}{{ '' if enable_thinking else '</think>' }}{# <think> #}", "</think>So"),
    ],
)
def test_a_prompt_says_once_that_there_is_no_thinking(source: str, end: str) -> None:
    assert render(source, SO, **OFF).prompt.endswith(f"hi{end}" if "messages[0]" in source else end)


@pytest.mark.parametrize(
    ("wanted", "message", "end"),
    [
        ("reasoning_content", BOTH, "<|assistant|><think>\nhm"),
        ("content", BOTH, "<|assistant|><think>\nhm\n</think>\n\nSo"),
        ("content", THOUGHT, "<|assistant|><think>\nhm\n</think>\n\n"),
        (True, THOUGHT, "<|assistant|><think>\nhm"),
        (True, BOTH, "<|assistant|><think>\nhm\n</think>\n\nSo"),
    ],
)
def test_a_request_says_which_part_goes_on(wanted: object, message: dict[str, object], end: str) -> None:
    assert render(QWEN, message, continue_final_message=wanted, add_generation_prompt=False).prompt.endswith(end)


@pytest.mark.parametrize("wanted", ["reasoning", 1, None, [], {}])
def test_another_word_for_what_goes_on_is_refused(wanted: object) -> None:
    if wanted is None:
        assert render(QWEN, SO, continue_final_message=wanted).prompt.endswith("So")
        return
    with pytest.raises(FieldInvalid, match="continue_final_message"):
        render(QWEN, SO, continue_final_message=wanted, add_generation_prompt=False)


def test_thoughts_of_a_model_that_has_none_cannot_go_on() -> None:
    with pytest.raises(FieldInvalid, match="shows no thinking to continue"):
        render(chat_templates.PLAIN, BOTH, continue_final_message="reasoning_content", add_generation_prompt=False)


def test_replies_continue_nothing_by_themselves_where_the_setting_says_so() -> None:
    settings = SETTINGS.model_copy(update={"prefill_assistant": False})
    messages = [USER, {"role": "assistant", **SO}]
    fields = parse(ChatFields, {"messages": messages})
    assert (
        render_chat(template_of(chat_templates.PLAIN), fields, settings).prompt
        == "<user>hi\n<assistant>So\n<assistant>"
    )
    fields = parse(ChatFields, {"messages": messages, "continue_final_message": True, "add_generation_prompt": False})
    assert render_chat(template_of(chat_templates.PLAIN), fields, settings).prompt == "<user>hi\n<assistant>So"


def test_an_empty_message_begins_nothing() -> None:
    assert render(QWEN, {"content": ""}).prompt == "<|user|>hi<|assistant|>"


@settings(deadline=None)
@given(
    st.sampled_from([QWEN, BEGINS_THINKING, CHANNELS, RECIPIENTS, chat_templates.PLAIN]),
    st.text("a <>think/|\n", min_size=1),
    st.text("b <>think/|\n"),
)
def test_a_reply_goes_on_with_the_text_that_was_sent(source: str, content: str, thoughts: str) -> None:
    prompt = render(source, {"content": content, "reasoning_content": thoughts}).prompt
    history = render_chat(template_of(source), parse(ChatFields, {"messages": [USER]}), SETTINGS).prompt
    assert prompt.endswith(content)
    assert prompt.startswith(history.removesuffix("<think>\n"))
