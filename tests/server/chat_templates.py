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
XML = _template("<tool_call><function={{ call.function.name }}></function></tool_call>arguments")
"""Of a family whose calls are not read here."""
