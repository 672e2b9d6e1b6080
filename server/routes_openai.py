"""OpenAI's generating routes: /v1/completions and /v1/chat/completions."""

from starlette.requests import Request
from starlette.routing import Route

from server.chat import render_chat
from server.door import engine_of
from server.generation import encode_prompt, make_choices, read_prompts
from server.openai_format import OpenAIDialect
from server.schemas import ChatBody, CompletionBody, read_body
from server.streaming import Answer


async def completions(request: Request) -> Answer:
    """Complete one or several prompts."""
    engine = engine_of(request)
    body = await read_body(request, CompletionBody, engine.unknown_fields)
    prompts = [await encode_prompt(engine.tokenizer, prompt) for prompt in read_prompts(body.prompt)]
    choices = make_choices(engine, body, prompts)
    return Answer(engine, choices, body.stop, OpenAIDialect(engine, body, "text"), body.stream)


async def chat_completions(request: Request) -> Answer:
    """Answer a conversation."""
    engine = engine_of(request)
    body = await read_body(request, ChatBody, engine.unknown_fields)
    prompt = await encode_prompt(engine.tokenizer, (render_chat(engine, body),), "messages")
    choices = make_choices(engine, body, [prompt])
    return Answer(engine, choices, body.stop, OpenAIDialect(engine, body, "chat"), body.stream)


routes = [
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions", chat_completions, methods=["POST"]),
]
