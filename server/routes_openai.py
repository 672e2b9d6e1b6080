"""OpenAI's generating routes: /v1/completions and /v1/chat/completions."""

from starlette.requests import Request
from starlette.routing import Route

from server.arrival import list_for_openai_answer
from server.chat import render_chat
from server.door import engine_of
from server.errors import FieldInvalid
from server.generation import make_choices, read_prompts
from server.openai_format import OpenAIDialect
from server.schemas import ChatBody, CompletionBody, GenerationBody, read_body
from server.streaming import Answer


async def completions(request: Request) -> Answer:
    """Complete one or several prompts."""
    engine = engine_of(request)
    body = await read_body(request, CompletionBody, engine.unknown_fields)
    _refuse_native_fields(body)
    async with list_for_openai_answer(request, engine, body) as served:
        choices = await make_choices(engine, body, served, read_prompts(body.prompt))
        return Answer(engine, choices, body, OpenAIDialect(engine, body, served, "text"))


async def chat_completions(request: Request) -> Answer:
    """Answer a conversation."""
    engine = engine_of(request)
    body = await read_body(request, ChatBody, engine.unknown_fields)
    _refuse_native_fields(body)
    async with list_for_openai_answer(request, engine, body) as served:
        prompt = render_chat(served.chat_template, body)
        choices = await make_choices(engine, body, served, [(prompt,)], "messages")
        return Answer(engine, choices, body, OpenAIDialect(engine, body, served, "chat"))


def _refuse_native_fields(body: GenerationBody) -> None:
    """Raise FieldInvalid where a field is used that only the native form of answers can honour."""
    for field, is_used in (("response_fields", bool(body.response_fields)), ("return_tokens", body.return_tokens)):
        if is_used:
            raise FieldInvalid(field, "is supported by /completion only")


routes = [
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions", chat_completions, methods=["POST"]),
]
