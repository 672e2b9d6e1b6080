"""Which family a chat template belongs to."""

import pytest

from model.tokens.chat_template import ChatTemplate
from server.tools import formats
from server.tools.formats import GENERIC, CallFormat, format_of
from tests.server import chat_templates


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (chat_templates.PLAIN, GENERIC),
        (chat_templates.PLAIN + "{# <tool_call> arguments #}", GENERIC),
        (chat_templates.HERMES_THINKING, formats.HERMES),
        (chat_templates.HERMES + "{# <invoke name= #}", GENERIC),
        (chat_templates.DEEPSEEK_UNTOLD, formats.DEEPSEEK),
        (chat_templates.DEEPSEEK_UNTOLD.replace("tool_calls", "calls"), GENERIC),
        *((source, getattr(formats, name)) for name, source in chat_templates.FAMILIES.items()),
    ],
)
def test_a_template_shows_its_family(source: str, form: CallFormat) -> None:
    assert format_of(ChatTemplate(source)) == form


def test_the_template_for_tools_counts_where_there_is_one() -> None:
    template = ChatTemplate(chat_templates.PLAIN, tool_use_source=chat_templates.HERMES)
    assert format_of(template) == formats.HERMES


def test_markers_are_what_a_reply_must_show() -> None:
    assert GENERIC.markers == ()
    assert set(formats.MISTRAL.markers) == {"[TOOL_CALLS]"}
    assert set(formats.MISTRAL_NAMED.markers) == {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    assert {"<tool_call>", "<arg_key>", "</arg_value>", "</tool_call>"} < set(formats.GLM.markers)
