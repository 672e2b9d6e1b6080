"""From a rendered chat to scheduler requests whose text can be read as a reply."""

from dataclasses import replace

from server.adapters.registry import ServedList
from server.chat.prompt import RenderedChat
from server.constraint_fields import WantedConstraint
from server.engine import Engine
from server.errors import FieldInvalid
from server.generation import Choice, make_choices
from server.replies.reasoning_budget import ReasoningBudget
from server.schemas import GenerationBody
from server.tools.constraint import tool_constraint


async def make_chat_choices(
    engine: Engine, body: GenerationBody, served: ServedList, chat: RenderedChat, field: str = "messages"
) -> list[Choice]:
    """Return one request for each of the `n` choices of a chat, attached to `served`. `field` is where the chat comes
    from, for messages. Raises what `make_choices` does.
    """
    choices = await make_choices(engine, body, served, [(chat.prompt,)], field, _constraint(body, served, chat))
    if chat.budget is not None:
        for choice in choices:
            _limit_thinking(choice, chat.budget)
    if chat.form is None:
        return choices
    shown_ids = chat.form.visible_ids(served.tokenizer)
    return [
        replace(choice, rules=replace(choice.rules, shown_ids=choice.rules.shown_ids | shown_ids)) for choice in choices
    ]


def is_constrained(body: GenerationBody) -> bool:
    """Whether the body asks for a form of the whole text. Raises FieldInvalid."""
    return any(True for _ in body.constraint_sources())


def _limit_thinking(choice: Choice, budget: ReasoningBudget) -> None:
    request = choice.request
    request.token_filter = budget.begin(choice.served.tokenizer, request.token_filter)
    request.sampling = replace(request.sampling, constraint=f"{request.sampling.constraint} {budget}")


def _constraint(body: GenerationBody, served: ServedList, chat: RenderedChat) -> WantedConstraint | None:
    """Return what the tools ask for; None where they don't, or where the body asks for a form of the whole text, in
    which there are no calls. Raises FieldInvalid where both are asked for.
    """
    if chat.form is None or not chat.use.callable:
        return None
    sources = list(body.constraint_sources())
    if sources and (chat.use.choice == "required" or "grammar" in sources[0].field):
        raise FieldInvalid(sources[0].field, "Cannot use custom grammar constraints with tools.")
    return None if sources else tool_constraint(chat.form, chat.use, served.tokenizer)
