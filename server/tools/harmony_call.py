"""Calls that are messages to `functions.name`, in replies with channels. server/harmony.py reads them, with all
that such replies are made of; here is what may be generated.
"""

from collections.abc import Mapping

from server.tools.argument_schema import arguments_schema, json_rule
from server.tools.fields import Tool, ToolUse
from server.tools.notation import literal

START = "<|start|>assistant"
"""Stands before each message; before the first one, in the prompt."""
_TO = " to=functions."
_CHANNEL = "<|channel|>commentary"
CALL_TRIGGERS = (START + _TO, _CHANNEL + _TO)
"""Words with which calls begin: those that name the recipient before the channel, and behind it."""


def harmony_rules(use: ToolUse) -> Mapping[str, str]:
    """Return the rule `start`, a call of one of the tools, and those that it is made of. A reply ends with a call."""
    tools = use.callable
    rules = {"start": " | ".join(f"call_{index}" for index in range(len(tools)))}
    for index, tool in enumerate(tools):
        rules |= _call_rules(tool, f"call_{index}")
    return {**rules, "type": '/ ?/ ("<|constrain|>" / ?/)? "json"?'}


def _call_rules(tool: Tool, rule: str) -> Mapping[str, str]:
    name = literal(_TO + tool.name)
    before, behind = f"{literal(START)}? {name} {literal(_CHANNEL)}", f"{literal(_CHANNEL)} {name}"
    return {
        rule: f'({before} | {behind}) type "<|message|>" {rule}_arguments',
        f"{rule}_arguments": json_rule(arguments_schema(tool.parameters)),
    }
