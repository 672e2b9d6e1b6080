"""The settings of chats: as given on the command line, and what they do to prompts."""

import argparse

import pytest

from model.tokens.chat_template import ChatTemplate
from server.chat.prompt import render_chat
from server.command_line import add_flags, read_settings
from server.schemas import ChatFields, parse
from server.settings import Settings
from tests.server import chat_templates

USER = {"role": "user", "content": "hi"}
VARIABLES = "{{ [tone, preserve_thinking, enable_thinking, reasoning_effort] }}{# <think></think> #}"


def settings_of(*flags: str) -> Settings:
    """Read a command line."""
    add_flags(parser := argparse.ArgumentParser())
    return read_settings(parser, ["-m", "model.gguf", *flags])


def prompt(settings: Settings, **body: object) -> str:
    """Render a chat."""
    return render_chat(ChatTemplate(VARIABLES), parse(ChatFields, {"messages": [USER], **body}), settings).prompt


@pytest.mark.parametrize(
    ("flags", "body", "shown"),
    [
        ((), {}, "[Undefined, True, True, Undefined]"),
        (("--chat-template-kwargs", '{"tone": "dry"}'), {}, "['dry', True, True, Undefined]"),
        (
            ("--chat-template-kwargs", '{"tone": "dry", "reasoning_effort": "low"}'),
            {"chat_template_kwargs": {"tone": "wet"}},
            "['wet', True, True, 'low']",
        ),
        (("--chat-template-kwargs", '{"enable_thinking": false}'), {}, "[Undefined, True, False, Undefined]"),
        (("--reasoning", "off"), {}, "[Undefined, True, False, Undefined]"),
        (("--no-reasoning-preserve",), {}, "[Undefined, False, True, Undefined]"),
        (
            ("--no-reasoning-preserve",),
            {"chat_template_kwargs": {"preserve_reasoning": True}},
            "[Undefined, True, True, Undefined]",
        ),
    ],
)
def test_settings_are_variables_of_the_template(flags: tuple[str, ...], body: dict[str, object], shown: str) -> None:
    assert prompt(settings_of(*flags), **body) == shown


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "must be JSON"),
        ("[1]", "must be a JSON object"),
        ('{"enable_thinking": "no"}', "enable_thinking must be true or false"),
    ],
)
def test_variables_that_are_none_end_the_start(value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_of("--chat-template-kwargs", value)
    assert f"--chat-template-kwargs: {message}" in capsys.readouterr().err


def test_variables_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CHAT_TEMPLATE_KWARGS", '{"tone": "dry"}')
    assert settings_of().chat_template_kwargs == {"tone": "dry"}


@pytest.mark.parametrize(("sent", "message"), [({}, "Enough."), ({"reasoning_budget_message": "Stop."}, "Stop.")])
def test_a_budget_has_the_message_of_the_setting_unless_the_request_has_one(
    sent: dict[str, object], message: str
) -> None:
    settings = settings_of("--reasoning-budget", "5", "--reasoning-budget-message", "Enough.")
    fields = parse(ChatFields, {"messages": [USER], **sent})
    rendered = render_chat(ChatTemplate(chat_templates.THINKING_BEGUN), fields, settings)
    assert rendered.budget is not None
    assert rendered.budget.message == message
