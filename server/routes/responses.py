"""OpenAI's Responses API: /v1/responses. Answers are not kept, so there is nothing to get or to delete."""

from starlette.requests import Request
from starlette.routing import Route

from server.arrival import list_for_openai_answer
from server.aside import in_proportion
from server.chat.choices import is_constrained, make_chat_choices
from server.chat.prompt import rendered_chat
from server.edge.door import engine_of
from server.responses.format import ResponsesDialect
from server.responses.schema import ResponsesBody, responses_chat
from server.schemas import read_body
from server.streaming import Answer


async def responses(request: Request) -> Answer:
    """Answer a text, or a conversation."""
    engine = engine_of(request)
    body = await read_body(request, ResponsesBody, engine.unknown_fields)
    chat = await in_proportion(lambda: responses_chat(body), body.input, body.tools)
    async with list_for_openai_answer(request, engine, body) as served:
        rendered = await rendered_chat(served.chat_template, chat, engine.settings, is_constrained=is_constrained(body))
        choices = await make_chat_choices(engine, body, served, rendered, "input")
        return Answer(engine, choices, body, ResponsesDialect(engine, body, served, rendered.form))


routes = [
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/responses", responses, methods=["POST"]),
]
