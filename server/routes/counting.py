"""How many tokens a conversation's prompt has: llama-server's routes beside OpenAI's. Generates nothing."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.arrival import list_for_now
from server.aside import in_proportion
from server.chat.prompt import rendered_chat
from server.edge.door import engine_of
from server.errors import JsonResponse
from server.generation import encode_prompt
from server.responses.schema import ResponsesBody, responses_chat
from server.schemas import ChatFields, read_body
from server.shapes.answers import PromptTokens


async def count_chat(request: Request) -> Response:
    """Count the tokens of the prompt that chat messages make."""
    return await _count(request, await read_body(request, ChatFields, engine_of(request).unknown_fields), "messages")


async def count_responses(request: Request) -> Response:
    """Count the tokens of the prompt that a body for /v1/responses makes."""
    body = await read_body(request, ResponsesBody, engine_of(request).unknown_fields)
    chat = await in_proportion(lambda: responses_chat(body), body.input, body.tools)
    chat = chat.model_copy(update={"model": body.model, "lora": body.lora})
    return await _count(request, chat, "input")


async def _count(request: Request, chat: ChatFields, field: str) -> Response:
    engine = engine_of(request)
    async with list_for_now(request, engine, chat) as served:
        rendered = await rendered_chat(served.chat_template, chat, engine.settings)
        ids = await encode_prompt(served.tokenizer, (rendered.prompt,), field)
    answer: PromptTokens = {"input_tokens": len(ids), "object": "response.input_tokens"}
    return JsonResponse(answer)


routes = [
    Route(f"{prefix}/{name}/input_tokens", count, methods=["POST"])
    for prefix in ("", "/v1")
    for name, count in (("chat/completions", count_chat), ("responses", count_responses))
]
