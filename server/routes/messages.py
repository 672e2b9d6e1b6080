"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.arrival import list_for_answer, list_for_now
from server.aside import in_proportion
from server.chat.choices import is_constrained, make_chat_choices
from server.chat.prompt import rendered_chat
from server.edge.door import engine_of
from server.errors import MESSAGES_PATH, JsonResponse
from server.generation import encode_prompt
from server.messages.format import MessagesDialect
from server.messages.schema import MessagesBody, MessagesFields, messages_chat
from server.schemas import read_body
from server.streaming import Answer


async def messages(request: Request) -> Answer:
    """Answer a conversation."""
    engine = engine_of(request)
    body = await read_body(request, MessagesBody, engine.unknown_fields)
    chat = await in_proportion(lambda: messages_chat(body), body.messages, body.tools, body.system)
    async with list_for_answer(request, engine, body) as served:
        rendered = await rendered_chat(served.chat_template, chat, engine.settings, is_constrained=is_constrained(body))
        choices = await make_chat_choices(engine, body, served, rendered)
        return Answer(engine, choices, body, MessagesDialect(engine, served, rendered.form))


async def count_tokens(request: Request) -> Response:
    """Count the tokens of the prompt that a conversation makes."""
    engine = engine_of(request)
    body = await read_body(request, MessagesFields, engine.unknown_fields)
    chat = await in_proportion(lambda: messages_chat(body), body.messages, body.tools, body.system)
    async with list_for_now(request, engine, body) as served:
        rendered = await rendered_chat(served.chat_template, chat, engine.settings)
        ids = await encode_prompt(served.tokenizer, (rendered.prompt,), "messages")
    return JsonResponse({"input_tokens": len(ids)})


routes = [
    Route(MESSAGES_PATH, messages, methods=["POST"]),
    Route(f"{MESSAGES_PATH}/count_tokens", count_tokens, methods=["POST"]),
]
