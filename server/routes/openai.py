"""OpenAI's generating routes: /v1/completions and /v1/chat/completions."""

from starlette.requests import Request
from starlette.routing import Route

from server.arrival import list_for_openai_answer
from server.chat.choices import is_constrained, make_chat_choices
from server.chat.prompt import rendered_chat
from server.edge.door import engine_of
from server.errors import FieldInvalid
from server.generation import make_choices, prompt_text, read_prompts
from server.openai.format import OpenAIDialect
from server.routes.infill import fill_in
from server.schemas import ChatBody, CompletionBody, GenerationBody, read_body
from server.streaming import Answer


async def completions(request: Request) -> Answer:
    """Complete one or several prompts."""
    engine = engine_of(request)
    body = await read_body(request, CompletionBody, engine.unknown_fields)
    _refuse_native_fields(body)
    if body.suffix and body.num_prompt_logprobs is not None:
        raise FieldInvalid("echo", "is not supported together with logprobs and suffix: the prompt has other tokens")
    async with list_for_openai_answer(request, engine, body) as served:
        prompts = read_prompts(body.prompt)
        asked = await fill_in(engine, body, served.tokenizer, prompts) if body.suffix else prompts
        choices = await make_choices(engine, body, served, asked)
        echoes = [prompt_text(served.tokenizer, prompt) for prompt in prompts] if body.echo else []
        dialect = OpenAIDialect(engine, body, served, "text", echoes, has_token_lists=body.logprobs is not None)
        return Answer(engine, choices, body, dialect)


async def chat_completions(request: Request) -> Answer:
    """Answer a conversation."""
    engine = engine_of(request)
    body = await read_body(request, ChatBody, engine.unknown_fields)
    _refuse_native_fields(body)
    async with list_for_openai_answer(request, engine, body) as served:
        rendered = await rendered_chat(served.chat_template, body, engine.settings, is_constrained=is_constrained(body))
        choices = await make_chat_choices(engine, body, served, rendered)
        return Answer(engine, choices, body, OpenAIDialect(engine, body, served, "chat", reply_form=rendered.form))


def _refuse_native_fields(body: GenerationBody) -> None:
    """Raise FieldInvalid where a field is used that only the native form of answers can honour, and `verbose` does not
    ask for that form beside OpenAI's."""
    for field, is_used in (("response_fields", bool(body.response_fields)), ("return_tokens", body.return_tokens)):
        if is_used and not body.verbose:
            raise FieldInvalid(field, "is supported by /completion, and elsewhere only with verbose")


routes = [
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions", chat_completions, methods=["POST"]),
]
