"""From messages to a prompt."""

import pytest

from server.chat.prompt import render_chat
from server.engine import Engine
from server.errors import FieldInvalid, RequestError
from server.schemas import ChatFields, parse
from tests.server.fakes import FakeExecutor, fake_engine

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Well,"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Renders `<role>content` lines."""
    return fake_engine(FakeExecutor())


def render(engine: Engine, **body: object) -> str:
    """Render the body of a request."""
    return render_chat(engine.chat_template, parse(ChatFields, body), engine.settings).prompt


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"messages": [USER]}, "<user>hi\n<assistant>"),
        ({"messages": [USER], "add_generation_prompt": False}, "<user>hi\n"),
        ({"messages": [USER], "chat_template_kwargs": {"shout": True}}, "<user>hi\n<assistant>!"),
        ({"messages": [USER, BEGUN]}, "<user>hi\n<assistant>Well,"),
        (
            {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": False},
            "<user>hi\n<assistant>Well,",
        ),
        (
            {"messages": [USER, {**BEGUN, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "<user>hi\n<assistant>a\n\nb",
        ),
        ({"messages": [USER, BEGUN], "add_generation_prompt": False}, "<user>hi\n<assistant>Well,\n"),
        ({"messages": [USER, BEGUN, USER]}, "<user>hi\n<assistant>Well,\n<user>hi\n<assistant>"),
        ({"messages": [{"role": "system", "content": ""}, USER]}, "<system>\n<user>hi\n<assistant>"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "<user>a\nb\n<assistant>",
        ),
    ],
)
def test_messages_are_rendered(engine: Engine, body: dict[str, object], prompt: str) -> None:
    assert render(engine, **body) == prompt


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "'messages' is required"),
        ({"messages": "hi"}, "Field 'messages': type must be array, but is string"),
        ({"messages": ["hi"]}, "Field 'messages[0]'"),
        ({"messages": [{"content": "hi"}]}, "Field 'messages[0].role'"),
        ({"messages": [{"role": "user"}]}, "All non-assistant messages must contain 'content'"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "Field 'messages[1].content'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "Field 'messages[0].content[0].type'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "Field 'messages[0].content[0].text'"),
        ({"messages": [USER, BEGUN, BEGUN]}, "2 or more assistant messages"),
        (
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": False},
            "Field 'continue_final_message'",
        ),
        ({"messages": [USER, BEGUN], "continue_final_message": True}, "Cannot set both add_generation_prompt and"),
        ({"messages": [USER, {"role": "assistant"}]}, "must contain either 'content' or 'tool_calls'"),
        ({"messages": [USER], "chat_template_kwargs": 5}, "Field 'chat_template_kwargs'"),
    ],
)
def test_what_is_no_conversation_is_refused(engine: Engine, body: dict[str, object], part: str) -> None:
    with pytest.raises(RequestError) as error:
        render(engine, **body)
    assert part in str(error.value)


def test_the_content_of_an_assistant_message_may_be_null(engine: Engine) -> None:
    assert render(engine, messages=[USER, {"role": "assistant", "content": None}]) == "<user>hi\n<assistant>"


TWO_PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
PARTS_LOOP = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message", "prompt"),
    [
        ("{{ messages[0].content }}", TWO_PARTS, "a\nb"),
        ("{{ messages[0].content | tojson }}", TWO_PARTS, '"a\\nb"'),
        (PARTS_LOOP, TWO_PARTS, "ab"),
        (PARTS_LOOP, USER, "hi"),
        (
            "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}" + PARTS_LOOP + "{% endif %}",
            TWO_PARTS,
            "ab",
        ),
        (
            "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}" + PARTS_LOOP + "{% endif %}",
            USER,
            "hi",
        ),
    ],
)
def test_a_template_that_joins_parts_gets_them(template: str, message: dict[str, object], prompt: str) -> None:
    assert render(fake_engine(FakeExecutor(), chat_template=template), messages=[message]) == prompt


def test_templates_are_told_the_date_as_by_llama_server() -> None:
    template = "{{ date_string }}|{{ datetime }}|{{ '' + functions }}"
    shown = render(fake_engine(FakeExecutor(), chat_template=template), messages=[USER])
    day, month, year = shown.partition("|")[0].split()
    assert shown == f"{day} {month} {year}|{month} {day} {year}|"


def test_reasoning_effort_goes_to_the_template() -> None:
    engine = fake_engine(FakeExecutor(), chat_template="{{ reasoning_effort }}:{{ messages[0].content }}")
    assert render(engine, messages=[USER], reasoning_effort="high") == "high:hi"
    with pytest.raises(FieldInvalid):
        render(engine, messages=[USER], reasoning_effort=5)
