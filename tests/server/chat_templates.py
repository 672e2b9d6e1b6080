"""Small chat templates, each with the signs of a family: how it shows tools, calls and results, and how it thinks."""

_NEW_LINE = "{{ '\\n' }}"
_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}" + _NEW_LINE + "{% endfor %}"
_TURNS = (
    "{% for message in messages %}<{{ message.role }}>THOUGHT{{ message.content }}"
    "{% for call in message.tool_calls or [] %}CALL{% endfor %}" + _NEW_LINE + "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _template(call: str, *, thinks: bool = False) -> str:
    thought = "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    return _TOOLS + _TURNS.replace("CALL", call).replace("THOUGHT", thought if thinks else "")


PLAIN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}" + _NEW_LINE + "{% endfor %}<assistant>"
"""Knows neither tools nor thinking."""
_HERMES_CALL = (
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
)
HERMES = _template(_HERMES_CALL)
HERMES_THINKING = (
    _template(_HERMES_CALL, thinks=True)
    + "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
THINKING_BEGUN = _template(_HERMES_CALL, thinks=True) + "{{ '<think>\\n' }}"
"""Ends its prompt in the middle of thinking."""
LLAMA = _template(
    '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
    "{# <|start_header_id|>ipython<|end_header_id|> #}"
)
MISTRAL = _template('[TOOL_CALLS][{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}]')
MISTRAL_NAMED = _template("[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments }}")
_LOOP = "{% for name, value in call.function.arguments.items() %}VALUE{% endfor %}"
_WORDS = "{{ value if value is string else value | tojson }}"


def _tagged(before: str, each: str, behind: str) -> str:
    return _template(before + _LOOP.replace("VALUE", each.replace("WORDS", _WORDS)) + behind)


_NAME, _JSON = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
_OBJECT = f'{{"name": "{_NAME}", "arguments": {_JSON}}}'
_PARAMETER = "<parameter={{ name }}>WORDS</parameter>"
_DEEPSEEK = (
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>{_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
_DSML = (
    '<｜DSML｜invoke name="{{ call.function.name }}">',
    '<｜DSML｜parameter name="{{ name }}">WORDS',
    "</｜DSML｜invoke>",
)
FAMILIES = {
    "HERMES": HERMES,
    "LLAMA": LLAMA,
    "MISTRAL": MISTRAL,
    "MISTRAL_NAMED": MISTRAL_NAMED,
    "QWEN_CODER": _tagged(f"<tool_call><function={_NAME}>", _PARAMETER, "</function></tool_call>"),
    "SEED": _tagged(f"<seed:tool_call><function={_NAME}>", _PARAMETER, "</function></seed:tool_call>"),
    "GLM": _tagged(f"<tool_call>{_NAME}", "<arg_key>{{ name }}</arg_key><arg_value>WORDS</arg_value>", "</tool_call>"),
    "MINIMAX": _tagged(
        f'<minimax:tool_call><invoke name="{_NAME}">',
        '<parameter name="{{ name }}">WORDS</parameter>',
        "</invoke></minimax:tool_call>",
    ),
    "DEEPSEEK_3_2": _tagged(f"<｜DSML｜function_calls>{_DSML[0]}", _DSML[1], _DSML[2]),
    "DEEPSEEK_4": _tagged(f"<｜DSML｜tool_calls>{_DSML[0]}", _DSML[1], _DSML[2]),
    "MINICPM": _tagged(f'<function name="{_NAME}">', '<param name="{{ name }}">WORDS</param>', "</function>"),
    "DEEPSEEK": _template(_DEEPSEEK),
    "DEEPSEEK_R1": _template(_DEEPSEEK.replace(_JSON, f"\n```json\n{_JSON}\n```")),
    "KIMI": _template(
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{_NAME}:0<|tool_call_argument_begin|>{_JSON}"
    ),
    "COMMAND_R7B": _template(f'<|START_ACTION|>[{{"tool_name": "{_NAME}", "parameters": {_JSON}}}]<|END_ACTION|>'),
    "GRANITE": _template(f"<|tool_call|>[{_OBJECT}]"),
    "NEMOTRON_NANO": _template(f"<TOOLCALL>[{_OBJECT}]</TOOLCALL>"),
    "APRIEL": _template(f"<tool_calls>[{_OBJECT}]</tool_calls>"),
    "MINIMAX_M1": _template(f"{{# <beginning_of_sentence> #}}<tool_calls>\n{_OBJECT}\n</tool_calls>"),
    "GEMMA_4": _tagged(f"<|tool_call>call:{_NAME}{{{{ '{{' }}}}", "{{ name }}:{{ value }},", "{{ '}' }}<tool_call|>"),
    "LFM2": _tagged(f"<|tool_call_start|>[{_NAME}(", "{{ name }}={{ value | tojson }}", ")]<|tool_call_end|>"),
    "GIGACHAT": _template(f"<|function_call|>{_OBJECT}"),
    "FUNCTIONARY": _template(f"<function={_NAME}>{_JSON}</function>{{# <|start_header_id|> #}}"),
}
"""By the names that their forms have in server/tools/formats.py."""
HARMONY = (
    _TOOLS + "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "{% for call in message.tool_calls or [] %}<|start|>assistant to=functions.{{ call.function.name }}"
    "<|channel|>commentary json<|message|>{{ call.function.arguments | tojson }}<|call|>{% endfor %}"
    "{% if message.content %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>{% endif %}"
    "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
DEEPSEEK_UNTOLD = _TURNS.replace("THOUGHT", "").replace("CALL", _DEEPSEEK)
"""Knows calls, and does not tell of tools."""
