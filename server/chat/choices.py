"""From a rendered chat to scheduler requests whose text can be read as a reply."""

from dataclasses import replace

from model.constraints.constraint import ConstraintError, Syntax
from model.tokens.tokenizer import Tokenizer
from server.adapters.registry import ServedList
from server.chat.prompt import RenderedChat
from server.chat.tool_constraint import tool_constraint
from server.constraint_fields import WantedConstraint, read_constraint
from server.engine import Engine
from server.errors import FieldInvalid
from server.generation import Choice, make_choices
from server.replies.reasoning_budget import ReasoningBudget
from server.reply import ReplyForm
from server.schemas import GenerationBody
from server.tools.fields import ToolUse

_BESIDE_TOOLS = (Syntax.JSON_SCHEMA, Syntax.REGEX)
"""A reply that is no call may keep to these: to a schema or a call, or else to an expression alone, for llguidance
would take the beginning of a call for the expression's."""


async def make_chat_choices(
    engine: Engine, body: GenerationBody, served: ServedList, chat: RenderedChat, field: str = "messages"
) -> list[Choice]:
    """Return one request for each of the `n` choices of a chat, attached to `served`. `field` is where the chat comes
    from, for messages. Raises what `make_choices` does.
    """
    wanted = _constraint(body, served.tokenizer, chat)
    choices = await make_choices(engine, body, served, [(chat.prompt,)], field, wanted)
    budget = _budget(chat, wanted)
    if budget is not None:
        for choice in choices:
            _limit_thinking(choice, budget)
    if chat.form is None:
        return choices
    shown_ids = chat.form.visible_ids(served.tokenizer)
    return [
        replace(choice, rules=replace(choice.rules, shown_ids=choice.rules.shown_ids | shown_ids)) for choice in choices
    ]


def is_constrained(body: GenerationBody) -> bool:
    """Whether the body asks for a form of the whole text. Raises FieldInvalid."""
    return any(True for _ in body.constraint_sources())


def _budget(chat: RenderedChat, wanted: WantedConstraint | None) -> ReasoningBudget | None:
    """Return what bounds thinking, or at least keeps triggers of a lazy constraint from being found in it, unless they
    end it.
    """
    form = chat.form
    if form is None or form.reasoning is None:
        return chat.budget
    is_blind = wanted is not None and wanted.text.triggers is not None and not form.interrupts
    budget = chat.budget
    if budget is None and is_blind:
        budget = ReasoningBudget(None, form.reasoning, form.is_reasoning_begun)
    return None if budget is None else replace(budget, interrupts=form.interrupts, is_inner_blind=is_blind)


def _limit_thinking(choice: Choice, budget: ReasoningBudget) -> None:
    request = choice.request
    request.token_filter = budget.begin(choice.served.tokenizer, request.token_filter)
    request.sampling = replace(request.sampling, constraint=f"{request.sampling.constraint} {budget}")


def _constraint(body: GenerationBody, tokenizer: Tokenizer, chat: RenderedChat) -> WantedConstraint | None:
    """Return what the body asks for, behind thinking where the reply may begin with some, and what the tools ask for;
    None where neither does. Raises FieldInvalid, also where both ask for what cannot be together.
    """
    form, use, wanted = chat.form, chat.use, read_constraint(body, tokenizer)
    if wanted is not None and use.callable and (wanted.text.triggers or wanted.text.syntax not in _BESIDE_TOOLS):
        raise FieldInvalid(wanted.field, "Cannot use custom grammar constraints with tools.")
    if form is None:
        return wanted
    is_regex = wanted is not None and wanted.text.syntax is Syntax.REGEX
    if use.callable and (use.choice == "required" or not is_regex):
        return _calls_or_text(form, use, tokenizer, wanted)
    if wanted is None or wanted.text.triggers is not None:
        return wanted
    preserved = wanted.text.preserved | form.visible_ids(tokenizer)
    return replace(wanted, text=replace(wanted.text, thinking=form.thinking, preserved=preserved))


def _calls_or_text(
    form: ReplyForm, use: ToolUse, tokenizer: Tokenizer, schema: WantedConstraint | None
) -> WantedConstraint | None:
    try:
        return tool_constraint(form, use, tokenizer, schema)
    except ConstraintError as error:
        assert schema is not None
        raise FieldInvalid(schema.field, str(error)) from None
