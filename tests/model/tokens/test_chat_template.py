"""Chat templates, against transformers' apply_chat_template."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from model.checkpoint.weights import load_checkpoint
from model.tokens.chat_template import ChatTemplate, TemplateError
from model.tokens.tokenizer import load_tokenizer

Messages = Sequence[Mapping[str, object]]

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- set date = date_string if date_string is defined else '26 Jul 2024' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}
{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}
{% endfor %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' ~ tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{%- continue %}{%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' ~ call.function.name ~ ' ' ~ (call.function.arguments | tojson(indent=2)) }}
    {%- endfor %}
    {%- generation %}{{- '<|im_end|>\\n' }}{%- endgeneration %}
{%- endfor %}
{{- ns.turns }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

CHAT: Messages = [
    {"role": "user", "content": "  What is <b>2 & 2</b>?\n"},
    {"role": "assistant", "content": '4 — "vier" 日本'},
    {"role": "user", "content": "Thanks 'you'"},
]
SYSTEM: Messages = [{"role": "system", "content": "Be brief. "}, *CHAT]
CALLS: Messages = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "get", "arguments": {"city": "Köln", "<n>": [1, None]}}}
        ],
    },
    {"role": "tool", "content": "rain"},
]
TOOLS: Messages = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "é": "<&>'"}}}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def oracle(source: str, messages: Messages, variables: Mapping[str, object], tools: Messages | None = None) -> str:
    encoder = Encoder(models.BPE(vocab={"<s>": 0, "</s>": 1}, merges=[]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, **SPECIAL)
    text: str = tokenizer.apply_chat_template(messages, chat_template=source, tools=tools, tokenize=False, **variables)
    return text


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    ("source", "messages"),
    [(CHATML, CHAT), (CHATML, SYSTEM), (LLAMA3, CHAT), (LLAMA3, SYSTEM), (MISTRAL, CHAT), (QWEN, SYSTEM)],
)
def test_prompts_are_those_of_transformers(source: str, messages: Messages, prompt: bool) -> None:
    template = ChatTemplate(source, special_tokens=SPECIAL, now=lambda: datetime(2024, 7, 26))
    rendered = template.render(messages, add_generation_prompt=prompt)

    assert rendered == oracle(source, messages, {"add_generation_prompt": prompt})


def test_tools_and_calls_are_rendered_as_transformers_does() -> None:
    rendered = ChatTemplate(QWEN).render(CALLS, tools=TOOLS)

    assert rendered == oracle(QWEN, CALLS, {"add_generation_prompt": True}, TOOLS)
    assert "Köln" in rendered
    assert "<&>'" in rendered


@pytest.mark.parametrize("variables", [{"enable_thinking": False}, {"enable_thinking": True}, {"unknown": [1]}])
def test_variables_of_the_request_reach_the_template(variables: dict[str, object]) -> None:
    rendered = ChatTemplate(QWEN).render(CHAT, variables=variables)

    assert rendered == oracle(QWEN, CHAT, {"add_generation_prompt": True, **variables})
    assert ("<think>" in rendered) == (variables.get("enable_thinking") is False)


def test_variables_do_not_replace_the_messages() -> None:
    rendered = ChatTemplate(CHATML).render(CHAT, variables={"messages": [], "add_generation_prompt": False})

    assert rendered == ChatTemplate(CHATML).render(CHAT)


def test_smollm2s_own_template_gives_the_prompt_of_transformers(smollm2_path: Path) -> None:
    template = load_tokenizer(load_checkpoint(smollm2_path)).chat_template
    assert template is not None

    for messages in (CHAT, SYSTEM):
        assert template.render(messages) == oracle(template.source, messages, {"add_generation_prompt": True})
    assert template.render(CHAT).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert template.render(CHAT).endswith("Thanks 'you'<|im_end|>\n<|im_start|>assistant\n")


def test_the_date_is_the_clocks() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))

    assert template.render([]) == "26 Jul 2024"


def test_fields_that_are_none_are_left_out() -> None:
    source = "{% for m in messages %}{{ m.name is defined }}{{ 'content' in m }}{% endfor %}"

    assert ChatTemplate(source).render([{"role": "user", "content": None, "name": "x"}]) == "TrueFalse"


def test_a_templates_refusal_carries_its_message() -> None:
    with pytest.raises(TemplateError, match="roles must alternate user/assistant"):
        ChatTemplate(MISTRAL, special_tokens=SPECIAL).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ messages[0].content + 'x' }}", [{"content": ["parts"]}]),
        ("{{ messages[0].content | tojson }}", [{"content": {1, 2}}]),
        ("{{ 1 / messages[0].content }}", [{"content": 0}]),
        ("{{ messages.append(1) }}", []),
        ("{{ messages[0].content.append(1) }}", [{"content": []}]),
        ("{{ messages[0].update({}) }}", [{"content": "x"}]),
        ("{{ messages.__class__.__mro__ }}", []),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", []),
        ("{{ {}['x'] + 1 }}", []),
        ("{{ {}['x']() }}", []),
        ("{{ '%d' | format(messages) }}", []),
    ],
)
def test_messages_that_a_template_cannot_render_are_refused(source: str, messages: Messages) -> None:
    with pytest.raises(TemplateError, match="the chat template refuses the messages: "):
        ChatTemplate(source).render(messages)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ messages[0].content.deeper }}", ""),
        ("{{ missing.field + 'a' }}", "a"),
        ("{{ 'a' + missing['field'] ~ missing }}", "a"),
        ("{% for tool in tools %}a{% endfor %}", ""),
        ("{{ tools is defined }}", "False"),
        ("{% set own = [] %}{% set _ = own.append(1) %}{% set _ = own.append(2) %}{{ own.pop(0) }}{{ own }}", "1[2]"),
        ("{{ ['a'] | map('upper') | tojson }}", '["A"]'),
        ("{{ '<a>' | safe + '<b>' }}", "<a><b>"),
        ("{{ '' + functions }}", ""),
        ("{{ date_string }} {{ datetime }}", "26 Jul 2024 Jul 26 2024"),
    ],
)
def test_what_is_not_there_is_no_text_as_in_llama_server(source: str, shown: str) -> None:
    assert ChatTemplate(source, now=lambda: datetime(2024, 7, 26)).render([]) == shown


@pytest.mark.parametrize("tool_use", [False, True])
def test_a_template_that_does_not_compile_is_refused_with_its_line(tool_use: bool) -> None:
    broken = "a\n{% if %}"

    with pytest.raises(TemplateError, match="chat template, line 2: "):
        ChatTemplate("", tool_use_source=broken) if tool_use else ChatTemplate(broken)
