"""Which family a chat template belongs to."""

import pytest

from model.chat_template import ChatTemplate
from server.tools.formats import GENERIC, CallFormat, Layout, format_of
from tests.server import chat_templates

MISTRAL = CallFormat("[TOOL_CALLS]", "", "arguments", Layout.ARRAY, call_id_length=9)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (chat_templates.PLAIN, GENERIC),
        (chat_templates.HERMES, CallFormat("<tool_call>", "</tool_call>", "arguments")),
        (chat_templates.HERMES_THINKING, CallFormat("<tool_call>", "</tool_call>", "arguments")),
        (chat_templates.LLAMA, CallFormat("", "", "parameters", optional_opener="<|python_tag|>")),
        (chat_templates.MISTRAL, MISTRAL),
        (chat_templates.MISTRAL_NAMED, CallFormat("[TOOL_CALLS]", "", "arguments", Layout.NAMED, call_id_length=9)),
        (chat_templates.XML, GENERIC),
        (chat_templates.PLAIN + "{# <tool_call> arguments #}", GENERIC),
    ],
)
def test_a_template_shows_its_family(source: str, form: CallFormat) -> None:
    assert format_of(ChatTemplate(source)) == form


def test_the_template_for_tools_counts_where_there_is_one() -> None:
    template = ChatTemplate(chat_templates.PLAIN, tool_use_source=chat_templates.HERMES)
    assert format_of(template).opener == "<tool_call>"


def test_markers_are_what_a_reply_must_show() -> None:
    assert GENERIC.markers == ()
    assert set(MISTRAL.markers) == {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
