"""Messages in the form that one template wants."""

import pytest

from model.tokens.chat_template import ChatTemplate
from server.chat.prompt import render_chat
from server.chat.template_fit import texts_for_template
from server.schemas import ChatFields, parse
from tests.model.tokens.test_reply_layout import CHANNELS, PARTS
from tests.server.fakes import fake_settings

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " hi "}
THOUGHT = {"role": "assistant", "content": "So", "reasoning_content": "hm"}
NO_SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
TURNS = "<{{ m.role }}>{{ m.content }}{% endfor %}"
TRIMMED = "{% for m in messages %}" + TURNS + "{# You have access to the following functions in JSONSchema format #}"


def prompt(source: str, *messages: object, **body: object) -> str:
    """Render messages."""
    fields = parse(ChatFields, {"messages": list(messages), **body})
    return render_chat(ChatTemplate(source), fields, fake_settings()).prompt


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([SYSTEM, USER], "<user>Be brief.\n hi "),
        ([USER], "<user> hi "),
        ([SYSTEM], ""),
        ([SYSTEM, USER, THOUGHT, USER], "<user>Be brief.\n hi <assistant>So<user> hi "),
    ],
)
def test_the_next_message_takes_the_systems_text_where_the_template_does_not(
    messages: list[object], shown: str
) -> None:
    assert prompt(NO_SYSTEM + TURNS, *messages) == shown


def test_the_systems_text_goes_before_the_parts_of_the_next_message() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, object]] = [dict(SYSTEM), {"role": "user", "content": parts}]
    texts = texts_for_template(ChatTemplate(NO_SYSTEM + TURNS), messages)
    assert texts == [{"role": "user", "content": [{"type": "text", "text": "Be brief."}, *parts]}]


def test_texts_are_trimmed_for_a_family_that_white_space_confuses() -> None:
    parts: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": " a "}]}
    template = ChatTemplate(TRIMMED)
    assert prompt(TRIMMED, USER) == "<user>hi"
    assert texts_for_template(template, [parts])[0]["content"] == [{"type": "text", "text": "a"}]
    assert texts_for_template(template, [{**THOUGHT, "reasoning_content": " hm "}])[0] == THOUGHT


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (CHANNELS, "<|assistant|><|channel|>analysis<|message|>hm<|end|><|assistant|><|channel|>final<|message|>So"),
        (PARTS, "[THINK]hm[/THINK]So"),
    ],
)
def test_earlier_thoughts_are_where_the_template_looks_for_them(source: str, shown: str) -> None:
    assert f"<|user|> hi {shown}<|user|> hi " in prompt(source, USER, THOUGHT, USER)


VARIABLES = "{{ [preserve_thinking, clear_thinking, truncate_history_thinking, drop_thinking, reasoning_strength] }}"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({}, "[True, False, False, False, Undefined]"),
        ({"chat_template_kwargs": {"preserve_reasoning": False}}, "[False, True, True, True, Undefined]"),
        ({"chat_template_kwargs": {"clear_thinking": True}}, "[True, True, False, False, Undefined]"),
        ({"reasoning_effort": "low"}, "[True, False, False, False, 'low']"),
        ({"reasoning_effort": "none"}, "[True, False, False, False, Undefined]"),
    ],
)
def test_variables_have_all_the_names_that_templates_know(body: dict[str, object], shown: str) -> None:
    assert prompt(VARIABLES, USER, **body) == shown


@pytest.mark.parametrize(
    ("source", "thinks"), [("{{ enable_thinking }}", False), ("{{ enable_thinking }}{# </think> #}", True)]
)
def test_a_template_is_told_to_think_where_its_thinking_is_known(source: str, thinks: bool) -> None:
    assert prompt(source, USER) == str(thinks)
    assert prompt(source, USER, chat_template_kwargs={"enable_thinking": True}) == "True"


def test_a_reply_gets_the_turn_that_templates_of_gemma_4_leave_out() -> None:
    source = "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
    turn = "<|turn>user\n hi <turn|>\n"
    assert prompt(source, USER) == f"{turn}<|turn>model\n"
    assert prompt(source + "{{ '<|turn>model\\n' }}", USER) == f"{turn}<|turn>model\n"
    assert prompt(source, USER, add_generation_prompt=False) == turn
