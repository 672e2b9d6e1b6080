"""llama-server's own routes: /completion, /tokenize, /detokenize, /apply-template."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from model.tokens.tokenizer import Tokenizer
from server.arrival import list_for_answer, list_for_now
from server.aside import in_proportion
from server.chat.prompt import rendered_chat
from server.edge.door import engine_of
from server.errors import FieldInvalid, JsonResponse
from server.fields import json_type
from server.generation import checked_token_id, encode_prompt, is_id, make_choices, read_prompt, read_prompts
from server.native_format import NativeDialect
from server.schemas import ChatFields, CompletionBody, DetokenizeBody, TokenizeBody, read_body
from server.shapes.answers import Detokenized, RenderedPrompt, TokenPiece, Tokens
from server.streaming import Answer


async def completion(request: Request) -> Answer:
    """Complete one or several prompts."""
    engine = engine_of(request)
    body = await read_body(request, CompletionBody, engine.unknown_fields)
    for field, is_used in (("echo", body.echo), ("suffix", bool(body.suffix))):
        if is_used:
            raise FieldInvalid(field, "is supported by /v1/completions only")
    async with list_for_answer(request, engine, body) as served:
        prompts = read_prompts(body.prompt)
        choices = await make_choices(engine, body, served, prompts)
        has_many = len(prompts) * body.n > 1
        return Answer(engine, choices, body, NativeDialect(engine, body, served, has_many))


async def tokenize(request: Request) -> Response:
    """Turn text, or a list of texts and token ids, into tokens."""
    engine = engine_of(request)
    body = await read_body(request, TokenizeBody, engine.unknown_fields)
    async with list_for_now(request, engine, body) as served:
        tokenizer = served.tokenizer
    ids: tuple[int, ...] = ()
    if body.content is not None:
        prompt = read_prompt(body.content, "content")
        ids = await encode_prompt(
            tokenizer, prompt, "content", add_special=body.add_special, parse_special=body.parse_special
        )
    return await in_proportion(lambda: _tokens(tokenizer, ids, with_pieces=body.with_pieces), ids)


def _tokens(tokenizer: Tokenizer, ids: Sequence[int], *, with_pieces: bool) -> Response:
    answer: Tokens = {"tokens": list(ids)}
    if with_pieces:
        answer = {"tokens": [TokenPiece(id=token_id, piece=_piece(tokenizer.piece(token_id))) for token_id in ids]}
    return JsonResponse(answer)


def _piece(text: bytes) -> str | list[int]:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)


async def detokenize(request: Request) -> Response:
    """Turn tokens into text, special tokens included. `prompt` is the same text under the name that vLLM's clients
    read.
    """
    engine = engine_of(request)
    body = await read_body(request, DetokenizeBody, engine.unknown_fields)
    async with list_for_now(request, engine, body) as served:
        tokenizer = served.tokenizer
    text = await in_proportion(lambda: _decode(tokenizer, body.tokens), body.tokens)
    answer: Detokenized = {"content": text, "prompt": text}
    return JsonResponse(answer)


def _decode(tokenizer: Tokenizer, tokens: list[object]) -> str:
    ids = []
    for index, token_id in enumerate(tokens):
        if not isinstance(token_id, int) or not is_id(token_id):
            raise FieldInvalid(f"tokens[{index}]", f"must be a token id, but is {json_type(token_id)}")
        ids.append(checked_token_id(tokenizer, token_id, f"tokens[{index}]"))
    return tokenizer.decode(ids)


async def apply_template(request: Request) -> Response:
    """Render chat messages into the prompt they would make."""
    engine = engine_of(request)
    body = await read_body(request, ChatFields, engine.unknown_fields)
    async with list_for_now(request, engine, body) as served:
        rendered = await rendered_chat(served.chat_template, body, engine.settings)
        answer: RenderedPrompt = {"prompt": rendered.prompt}
        return JsonResponse(answer)


routes = [
    Route("/completion", completion, methods=["POST"]),
    Route("/completions", completion, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
]
