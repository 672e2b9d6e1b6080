"""How templates of several families write an assistant's message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.chat_template import ChatTemplate
from model.tokens.reply_layout import ThinkingLayout, ThoughtsPlace, with_thoughts

_HEAD = "{% for m in messages %}<|{{ m.role }}|>"
_BEGUN = "{% if add_generation_prompt %}<|assistant|>"
QWEN = (
    _HEAD + "{% if m.role == 'assistant' %}<think>{{ '\\n' ~ m.reasoning_content ~ '\\n' }}</think>{{ '\\n\\n' }}"
    "{% endif %}{{ m.content }}{% endfor %}" + _BEGUN + "{% endif %}"
)
BEGINS_THINKING = QWEN.replace(_BEGUN, _BEGUN + "{{ '<think>\\n' }}")
CHANNELS = (
    _HEAD + "{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|assistant|>{% endif %}"
    "{% if m.role == 'assistant' %}<|channel|>final<|message|>{% endif %}{{ m.content }}{% endfor %}"
    + _BEGUN
    + "{% endif %}"
)
PARTS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
NONE_SAID = (
    _HEAD + "{{ m.content }}{% endfor %}" + _BEGUN + "{% if not enable_thinking %}"
    "<|channel>thought{{ '\\n' }}<channel|>{% endif %}{% endif %}"
)
RECIPIENTS = (
    _HEAD + "{% if m.role == 'assistant' %}>>>all{{ '\\n' }}{% endif %}{{ m.content }}{% endfor %}" + _BEGUN
) + ">>>{% endif %}"
DATA = _HEAD + "{{ m.content }}{% endfor %}" + _BEGUN + "{% endif %}"
REFUSES = "{{ raise_exception('no') }}"


@pytest.mark.parametrize(
    ("source", "layout"),
    [
        (QWEN, ThinkingLayout("<think>\n", "\n</think>\n\n")),
        (BEGINS_THINKING, ThinkingLayout("<think>\n", "\n</think>\n\n")),
        (
            CHANNELS,
            ThinkingLayout(
                "<|channel|>analysis<|message|>",
                "<|end|><|assistant|><|channel|>final<|message|>",
                place=ThoughtsPlace.THINKING,
            ),
        ),
        (PARTS, ThinkingLayout("[THINK]", "[/THINK]", place=ThoughtsPlace.PART)),
        (NONE_SAID, ThinkingLayout("<|channel>thought\n", "<channel|>")),
        (RECIPIENTS, None),
        (DATA, None),
        (REFUSES, None),
    ],
)
def test_thoughts_are_written_as_the_template_shows_them(source: str, layout: ThinkingLayout | None) -> None:
    assert ChatTemplate(source).reply_layout.thinking == layout


@pytest.mark.parametrize(("source", "lead"), [(RECIPIENTS, "all\n"), (DATA, ""), (PARTS, ""), (REFUSES, "")])
def test_what_stands_before_the_content_is_found(source: str, lead: str) -> None:
    assert ChatTemplate(source).reply_layout.content_lead == lead


@pytest.mark.parametrize(
    ("prompt", "rest"),
    [
        ("a<think>\n", "a"),
        ("a<think>\n\n</think>\n\n", "a"),
        ("a<think>Let me see:\n", "a"),
        ("<think>a</think>b", "<think>a</think>b"),
        ("a</think>", "a</think>"),
        ("a", "a"),
        ("a<think>" + " " * 1_000_000 + "b", "a<think>" + " " * 1_000_000 + "b"),
    ],
    ids=range(7),
)
def test_thinking_at_the_end_of_a_prompt_is_taken_away(prompt: str, rest: str) -> None:
    assert ThinkingLayout("<think>\n", "\n</think>\n\n", "Let me see:").without_begun(prompt) == rest


def test_a_prompt_may_say_that_there_is_no_thinking() -> None:
    layout = ThinkingLayout("<think>\n", "\n</think>\n\n")
    assert layout.has_ended("a</think>\n")
    assert not layout.has_ended("a")
    assert not ThinkingLayout("", "").has_ended("a")


def test_thoughts_go_where_the_template_looks_for_them() -> None:
    message = {"role": "assistant", "content": "b", "reasoning_content": "a"}
    assert with_thoughts(message, "a", ThoughtsPlace.REASONING_CONTENT) == message
    assert with_thoughts(message, "a", ThoughtsPlace.THINKING) == {"role": "assistant", "content": "b", "thinking": "a"}
    thought, text = {"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}
    for content in ("b", [text]):
        placed = with_thoughts({**message, "content": content}, "a", ThoughtsPlace.PART)
        assert placed == {"role": "assistant", "content": [thought, text]}


@settings(deadline=None)
@given(st.text("a <>think/\n", max_size=40), st.sampled_from(["", "Let me see:"]))
def test_only_the_end_of_a_prompt_is_taken_away(prompt: str, lead: str) -> None:
    layout = ThinkingLayout("<think>\n", "\n</think>\n\n", lead)
    rest = layout.without_begun(prompt)
    assert prompt.startswith(rest)
    assert prompt[len(rest) :].strip().removeprefix("<think>").strip() in ("", lead, "</think>")
