"""What may be generated where tools must be called, or once a call has begun: calls as their family writes them, with
arguments that fit the tools' schemas.

Written in llguidance's own language of grammars. A reply may begin with thinking, where the model thinks.
"""

from model.constraints.constraint import ConstraintText, Syntax, schema_with_whitespace
from model.constraints.triggers import Triggers
from model.tokens.tokenizer import Tokenizer
from server.constraint_fields import WantedConstraint
from server.harmony import FINAL
from server.reply import ReplyForm
from server.tools.fields import ToolUse
from server.tools.formats import CallFormat
from server.tools.harmony_call import harmony_rules
from server.tools.notation import literal

_MAX_CHARACTERS = 1 << 18
"""Of the rules of all tools of a request: agents offer dozens, described at length."""
_SPACE = r"/\n{0,2} {0,4}/"


def tool_constraint(
    form: ReplyForm, use: ToolUse, tokenizer: Tokenizer, schema: WantedConstraint | None = None
) -> WantedConstraint | None:
    """Return what a request's tools ask for: calls, where one must come; where one may, calls or a text that fits a
    JSON `schema`, or without one calls from the first marker of one on; None where nothing shows that one begins.
    Raises ConstraintError where `schema` is none.
    """
    calls = form.calls
    words = () if calls is None else calls.triggers(use.callable)
    if use.choice == "required":
        schema = None  # there is no text
    elif calls is None or (schema is None and not words):
        return schema
    assert calls is not None
    shown_ids = form.visible_ids(tokenizer)
    triggers, field = None, "tools"
    rules = dict(harmony_rules(use)) if calls.is_in_channels else _call_rules(calls, use)
    if schema is not None:
        field, shown_ids = f"{schema.field} and tools", shown_ids | schema.text.preserved
        before_text = literal(FINAL) if form.has_channels and FINAL not in form.begun else ""
        text = f"{before_text} json_text"
        rules |= {"start": "calls | text", "calls": rules["start"], "text": text}
        rules["json_text"] = f"%json {schema_with_whitespace(schema.text.text)}"
    elif use.choice != "required":
        first_ids = tokenizer.encode(words[0])
        triggers = Triggers(words, tuple(first_ids) if shown_ids.issuperset(first_ids) else ())
    grammar = "\n".join(f"{name}: {rule}" for name, rule in rules.items())
    thinking = form.thinking_before_calls if triggers is None else None
    constraint = ConstraintText(Syntax.LARK, grammar, triggers, shown_ids, thinking, _MAX_CHARACTERS)
    return WantedConstraint(field, constraint)


def _call_rules(form: CallFormat, use: ToolUse) -> dict[str, str]:
    """Return the rule `start`, and those it is made of, by name."""
    tools = use.callable
    rules = {"start": _calls(form, use), "call": " | ".join(f"call_{index}" for index in range(len(tools)))}
    for index, tool in enumerate(tools):
        rules |= form.notation.rules(tool, f"call_{index}")
    return {**rules, "space": _SPACE}


def _calls(form: CallFormat, use: ToolUse) -> str:
    closer = f"space {literal(form.closer)}" if form.closer else ""
    opener = f"{literal(form.opener)} space" if form.opener else ""
    if any(form.around_name):
        opener = f"({opener})?"
    one = f"{opener} call {closer}"
    between = 'space "," space' if form.is_array else "space"
    calls = f"{one} ({between} {one})*" if use.is_parallel else one
    if form.is_array:
        calls = f'"[" space {calls} space "]"'
    if not form.section_opener:
        return calls
    section_closer = f"space {literal(form.section_closer)}" if form.section_closer else ""
    return f"{literal(form.section_opener)} space {calls} {section_closer}"
