"""From a rendered chat to scheduler requests whose text can be read as a reply."""

from dataclasses import replace

from server.adapter_registry import ServedList
from server.chat import RenderedChat
from server.constraint_fields import WantedConstraint
from server.engine import Engine
from server.errors import FieldInvalid
from server.generation import Choice, make_choices
from server.schemas import GenerationBody
from server.tool_constraint import tool_constraint


async def make_chat_choices(
    engine: Engine, body: GenerationBody, served: ServedList, chat: RenderedChat, field: str = "messages"
) -> list[Choice]:
    """Return one request for each of the `n` choices of a chat, attached to `served`. `field` is where the chat comes
    from, for messages. Raises what `make_choices` does.
    """
    form = chat.form
    if form is None:
        return await make_choices(engine, body, served, [(chat.prompt,)], field)
    constraint = _constraint(body, served, chat)
    choices = await make_choices(engine, body, served, [(chat.prompt,)], field, constraint)
    shown_ids = form.visible_ids(served.tokenizer)
    return [
        replace(choice, rules=replace(choice.rules, shown_ids=choice.rules.shown_ids | shown_ids)) for choice in choices
    ]


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
