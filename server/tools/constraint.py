"""What may be generated where tools must be called, or once a call has begun: calls as their family writes them, with
arguments that fit the tools' schemas.

Written in llguidance's own language of grammars. A reply may begin with thinking, where the model thinks.
"""

import json
from collections.abc import Mapping

from model.constraint import ConstraintText, Syntax, schema_with_whitespace
from model.constraint_triggers import Triggers
from model.tokenizer import Tokenizer
from server.constraint_fields import WantedConstraint
from server.replies.reply import ReplyForm
from server.tools.fields import Tool, ToolUse
from server.tools.formats import ARGUMENTS_MARK, CallFormat, Layout

_SPACE = r"/[ \n]{0,2}/"


def tool_constraint(form: ReplyForm, use: ToolUse, tokenizer: Tokenizer) -> WantedConstraint | None:
    """Return what a request's tools ask for: calls, where one must come; where one may, calls from the first marker of
    one on; None where nothing shows that one begins.
    """
    calls = form.calls
    if calls is None or (use.choice != "required" and not calls.opener):
        return None
    shown_ids = form.visible_ids(tokenizer)
    triggers = None
    if use.choice != "required":
        opener_ids = tokenizer.encode(calls.opener)
        triggers = Triggers((calls.opener,), tuple(opener_ids) if shown_ids.issuperset(opener_ids) else ())
    text = "\n".join(f"{name}: {rule}" for name, rule in {"start": "calls", **_call_rules(calls, use)}.items())
    thinking = form.thinking if triggers is None else None
    return WantedConstraint("tools", ConstraintText(Syntax.LARK, text, triggers, shown_ids, thinking))


def _call_rules(form: CallFormat, use: ToolUse) -> dict[str, str]:
    """Return the rule `calls`, and those it is made of, by name."""
    tools = use.callable
    rules = {"calls": _calls(form, use), "call": " | ".join(f"call_{index}" for index in range(len(tools)))}
    for index, tool in enumerate(tools):
        rules[f"call_{index}"] = _call(form, tool, f"arguments_{index}")
        rules[f"arguments_{index}"] = f"%json {schema_with_whitespace(json.dumps(_schema(tool)))}"
    return {**rules, "space": _SPACE}


def _calls(form: CallFormat, use: ToolUse) -> str:
    opener, closer = json.dumps(form.opener), json.dumps(form.closer)
    match form.layout:
        case Layout.ARRAY:
            more = ' ("," space call)*' if use.is_parallel else ""
            return f'{opener} space "[" space call{more} space "]"'
        case Layout.NAMED:
            one = f"{opener} call"
        case Layout.OBJECT if form.closer:
            one = f"{opener} space call space {closer}"
        case Layout.OBJECT:
            one = "call"
    return f"{one} (space {one})*" if use.is_parallel else one


def _call(form: CallFormat, tool: Tool, arguments: str) -> str:
    if form.layout is Layout.NAMED:
        return f"{json.dumps(tool.name + ARGUMENTS_MARK)} {arguments}"
    name = json.dumps(json.dumps(tool.name))
    key = json.dumps(f'"{form.arguments_key}"')
    call_id = ""
    if form.call_id_length:
        call_id = f' ("," space "\\"id\\"" ":" space /"[a-zA-Z0-9]{{{form.call_id_length}}}"/)?'
    return f'"{{" space "\\"name\\"" ":" space {name} "," space {key} ":" space {arguments}{call_id} space "}}"'


def _schema(tool: Tool) -> Mapping[str, object]:
    """Return the schema of a tool's arguments, which are an object, with no properties but those that it names."""
    schema = {"type": "object", **tool.parameters}
    return schema if "properties" not in schema else {"additionalProperties": False, **schema}
