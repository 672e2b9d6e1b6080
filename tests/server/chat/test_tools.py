"""How tools, calls and results get into prompts, with templates that know them and with those that do not."""

import json

import pytest

from model.tokens.chat_template import ChatTemplate
from server.chat.prompt import RenderedChat, render_chat
from server.errors import FieldInvalid, RequestError
from server.schemas import ChatFields, parse
from server.settings import Settings
from tests.server import chat_templates
from tests.server.fakes import fake_settings

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tell it.", "parameters": SCHEMA}}
USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}


def render(source: str, *, server_settings: Settings | None = None, **body: object) -> RenderedChat:
    """Render the body of a request."""
    return render_chat(ChatTemplate(source), parse(ChatFields, body), server_settings or fake_settings())


def prompt(source: str, **body: object) -> str:
    """Return its prompt."""
    return render_chat(ChatTemplate(source), parse(ChatFields, body), fake_settings()).prompt


def test_a_template_that_knows_tools_gets_them_as_they_are() -> None:
    expected = json.dumps(TOOL) + "\n<user>hi\n<assistant>"
    assert prompt(chat_templates.HERMES, messages=[USER], tools=[TOOL]) == expected


def test_what_a_tool_leaves_out_is_empty() -> None:
    shown = prompt(chat_templates.HERMES, messages=[USER], tools=[{"type": "function", "function": {"name": "f"}}])
    function = json.loads(shown.partition("\n")[0])["function"]
    assert function == {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (chat_templates.HERMES, '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'),
        (chat_templates.LLAMA, '{"name": "get_weather", "parameters": {"city": "Rome"}}'),
        (chat_templates.MISTRAL, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]'),
        (chat_templates.MISTRAL_NAMED, '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}'),
    ],
)
@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}])
def test_earlier_calls_are_written_as_the_template_does(source: str, call: str, arguments: object) -> None:
    called = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": arguments}}]}
    shown = prompt(source, messages=[USER, called, RESULT])
    assert shown == f"<user>hi\n<assistant>{call}\n<tool>Sunny.\n<assistant>"


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (chat_templates.FAMILIES["QWEN_CODER"], "<function=get_weather><parameter=city>Rome</parameter></function>"),
        (chat_templates.FAMILIES["GLM"], "get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"),
        (chat_templates.DEEPSEEK_UNTOLD, 'get_weather<｜tool▁sep｜>{"city": "Rome"}'),
    ],
)
def test_templates_that_write_arguments_themselves_get_them_as_objects(source: str, call: str) -> None:
    assert call in prompt(source, messages=[USER, CALLED, RESULT], tools=[TOOL])


def test_a_template_that_knows_calls_and_tells_of_no_tools_gets_words_with_its_own_form() -> None:
    shown = prompt(chat_templates.DEEPSEEK_UNTOLD, messages=[USER], tools=[TOOL])
    assert shown.startswith("<system>You have these tools")
    assert (
        "nothing but text of this form:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name of the tool<｜tool▁sep｜>{"
        in shown
    )
    assert prompt(chat_templates.DEEPSEEK_UNTOLD, messages=[USER]) == "<user>hi\n<assistant>"


def test_a_template_without_tools_gets_them_in_words() -> None:
    shown = prompt(chat_templates.PLAIN, messages=[{"role": "system", "content": "Be brief."}, USER], tools=[TOOL])
    assert shown.startswith("<system>Be brief.\n\nYou have these tools")
    assert json.dumps({"name": "get_weather", "description": "Tell it.", "parameters": SCHEMA}) in shown
    assert '{"name": "name of the tool", "arguments": {"name of an argument": value}}' in shown
    assert shown.endswith("<user>hi\n<assistant>")


def test_words_go_to_the_user_where_there_can_be_no_system() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + chat_templates.PLAIN
    shown = prompt(source, messages=[USER], tools=[TOOL])
    assert shown.startswith("<user>You have these tools")
    assert shown.endswith("\n\nhi\n<assistant>")


def test_words_say_whether_a_tool_must_be_called_and_how_many_may() -> None:
    must = prompt(
        chat_templates.PLAIN, messages=[USER], tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    may = prompt(chat_templates.PLAIN, messages=[USER], tools=[TOOL])
    assert "You must call one of them, by" in must
    assert "call one or several of them" in may
    assert "must" not in may


def test_without_a_template_for_them_calls_and_results_are_text() -> None:
    shown = prompt(chat_templates.PLAIN, messages=[USER, {**CALLED, "content": "So:"}, RESULT, RESULT, USER])
    assert shown == (
        '<user>hi\n<assistant>So:\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n'
        "<user>Result of the tool: Sunny.\nResult of the tool: Sunny.\n<user>hi\n<assistant>"
    )


def test_tools_that_may_not_be_called_are_not_told_in_words() -> None:
    assert prompt(chat_templates.PLAIN, messages=[USER], tools=[TOOL], tool_choice="none") == "<user>hi\n<assistant>"


def test_arguments_that_a_template_writes_must_be_json() -> None:
    called = {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{city"}}]}
    with pytest.raises(FieldInvalid) as error:
        prompt(chat_templates.HERMES, messages=[USER, called, RESULT])
    assert error.value.field == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]},
            "tools[0].function.description",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "chat_template_kwargs.enable_thinking"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
        ({"messages": [USER, {**CALLED, "tool_calls": 5}]}, "messages[1].tool_calls"),
        ({"messages": [USER, {**CALLED, "tool_calls": [5]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "type": "x"}]}]}, "messages[1].tool_calls[0].type"),
        (
            {"messages": [USER, {**CALLED, "tool_calls": [{"type": "function"}]}]},
            "messages[1].tool_calls[0].function",
        ),
        (
            {"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "function": {"name": "f"}}]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"messages": [USER, CALLED]}, "messages"),
        ({"messages": [USER, {**RESULT, "tool_call_id": 5}]}, "messages[1].tool_call_id"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "call_1"}]}, "messages[1].content"),
        (
            {"messages": [USER, {"role": "assistant", "content": "a", "reasoning_content": 5}]},
            "messages[1].reasoning_content",
        ),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, object], field: str) -> None:
    with pytest.raises(FieldInvalid) as error:
        prompt(chat_templates.HERMES, **{"messages": [USER], **body})
    assert error.value.field == field


@pytest.mark.parametrize(
    ("source", "body", "end"),
    [
        (chat_templates.HERMES_THINKING, {}, ""),
        (
            chat_templates.HERMES_THINKING,
            {"chat_template_kwargs": {"enable_thinking": False}},
            "<think>\n\n</think>\n\n",
        ),
        (chat_templates.HERMES_THINKING, {"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        (chat_templates.THINKING_BEGUN, {}, "<think>\n"),
        (chat_templates.THINKING_BEGUN, {"reasoning_effort": "none"}, "<think>\n</think>"),
    ],
)
def test_thinking_can_be_switched_off(source: str, body: dict[str, object], end: str) -> None:
    assert prompt(source, messages=[USER], **body).endswith(f"\n<assistant>{end}")


def test_the_setting_switches_thinking_off_and_a_request_on_again() -> None:
    settings = fake_settings().model_copy(update={"reasoning": "off"})
    off = render(chat_templates.THINKING_BEGUN, server_settings=settings, messages=[USER])
    on = render(
        chat_templates.THINKING_BEGUN,
        server_settings=settings,
        messages=[USER],
        chat_template_kwargs={"enable_thinking": True},
    )
    assert off.prompt.endswith("<think>\n</think>")
    assert on.prompt.endswith("<think>\n")
    assert [rendered.form is not None and rendered.form.is_reasoning_begun for rendered in (off, on)] == [False, True]


def test_earlier_thinking_goes_to_the_template() -> None:
    thought = {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}
    shown = prompt(chat_templates.HERMES_THINKING, messages=[USER, thought, USER])
    assert "<assistant><think>hm</think>Hi.\n" in shown


def test_a_chat_without_tools_and_thinking_has_no_form() -> None:
    assert render(chat_templates.PLAIN, messages=[USER]).form is None
    assert render(chat_templates.HERMES_THINKING, messages=[USER], reasoning_format="none").form is None
    assert render(chat_templates.HERMES, messages=[USER], tools=[TOOL], tool_choice="none").form is None


def test_a_model_without_a_template_refuses() -> None:
    with pytest.raises(RequestError, match="chat template"):
        render_chat(None, parse(ChatFields, {"messages": [USER]}), fake_settings())
