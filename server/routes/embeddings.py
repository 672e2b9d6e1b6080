"""Embeddings: llama-server's /embedding and /embeddings, OpenAI's /v1/embeddings. Ranking, which no model here does."""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler.batch import Pooling, SamplingParams
from scheduler.request import Request as SchedulerRequest
from server.adapters.registry import ServedList
from server.arrival import list_for_answer, list_for_openai_answer
from server.edge.door import engine_of
from server.embeddings.answer import EmbeddingAnswer
from server.embeddings.schema import EmbeddingsBody
from server.embeddings.vectors import VectorForm
from server.engine import Engine
from server.errors import BodyInvalid, FeatureOff, FieldInvalid, dump_json
from server.generation import Choice, encode_prompts
from server.schemas import read_body
from server.shapes.answers import EmbeddingEnvelope

_NOTHING_SAMPLED = SamplingParams()


async def embeddings(request: Request) -> EmbeddingAnswer:
    """Embed one or several inputs, and answer in llama-server's form."""
    engine = _engine_that_embeds(request)
    body = await read_body(request, EmbeddingsBody, engine.unknown_fields)
    async with list_for_answer(request, engine, body) as served:
        return await _answer(engine, body, served, is_native=True)


async def openai_embeddings(request: Request) -> EmbeddingAnswer:
    """Embed one or several inputs, and answer in OpenAI's form; in llama-server's where they come as `content`."""
    engine = _engine_that_embeds(request)
    body = await read_body(request, EmbeddingsBody, engine.unknown_fields)
    async with list_for_openai_answer(request, engine, body) as served:
        return await _answer(engine, body, served, is_native=body.input is None)


async def rerank(request: Request) -> Response:
    """Refuse to rank documents: that takes a model with a head for it."""
    raise FeatureOff("This server does not support reranking: its model has no head that ranks")


def _engine_that_embeds(request: Request) -> Engine:
    engine = engine_of(request)
    if not engine.settings.embeddings:
        raise FeatureOff("This server does not support embeddings. Start it with `--embeddings`")
    return engine


async def _answer(engine: Engine, body: EmbeddingsBody, served: ServedList, *, is_native: bool) -> EmbeddingAnswer:
    form = _form(engine, body, is_native=is_native)
    choices = await _choices(engine, body, served, form.pooling)

    def render() -> bytes:
        if is_native:
            return b"[" + b",".join(dump_json(form.rows(each.index, each.request)) for each in choices) + b"]"
        num_tokens = sum(len(each.request.prompt) for each in choices)
        envelope: EmbeddingEnvelope = {
            "model": body.model or engine.model.name,
            "object": "list",
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        # One by one: encoding a thousand vectors at once would keep the event loop from everybody's tokens.
        items = b",".join(dump_json(form.item(each.index, each.request)) for each in choices)
        return dump_json(envelope)[:-1] + b',"data":[' + items + b"]}"

    return EmbeddingAnswer(engine, choices, render)


def _form(engine: Engine, body: EmbeddingsBody, *, is_native: bool) -> VectorForm:
    """Return what vectors are wanted. Raises BodyInvalid and FieldInvalid where they cannot be had."""
    settings, size = engine.settings, engine.model.n_embd
    stated = engine.model.pooling if settings.pooling is None else Pooling(settings.pooling)
    pooling = stated or (Pooling.NONE if is_native else Pooling.LAST)
    if pooling is Pooling.NONE and not is_native:
        raise BodyInvalid("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if pooling is Pooling.NONE and body.embd_normalize not in (None, -1):
        reason = f"vectors that are not pooled are not normalised; only -1 is accepted, but got {body.embd_normalize}"
        raise FieldInvalid("embd_normalize", reason)
    if body.dimensions not in (None, size):
        raise FieldInvalid("dimensions", f"only the model's {size} is supported, but got {body.dimensions}")
    if body.is_base64 and is_native:
        raise FieldInvalid("encoding_format", 'only "float" is supported in this form of answer, but got "base64"')
    norm = settings.embd_normalize if body.embd_normalize is None else body.embd_normalize
    return VectorForm(pooling, norm, body.is_base64)


async def _choices(engine: Engine, body: EmbeddingsBody, served: ServedList, pooling: Pooling) -> list[Choice]:
    """Return a request for each input, attached to `served`."""
    field, inputs = body.prompts()
    prompts = await encode_prompts(served.tokenizer, inputs, field, engine.loop.scheduler.limits.max_context)
    if not all(prompts):
        raise BodyInvalid("Input content cannot be empty")
    requests = list(_requests(engine, served, prompts, pooling))
    served.attach(request.request_id for request in requests)
    return [Choice(index, index, request, served) for index, request in enumerate(requests)]


def _requests(
    engine: Engine, served: ServedList, prompts: list[tuple[int, ...]], pooling: Pooling
) -> Iterator[SchedulerRequest]:
    for prompt in prompts:
        key, activations = served.activate(prompt)
        yield SchedulerRequest(
            request_id=engine.loop.next_request_id(),
            key=key,
            prompt=prompt,
            sampling=_NOTHING_SAMPLED,
            max_new_tokens=0,
            activations=activations,
            pooling=pooling,
        )


routes = [
    Route("/embedding", embeddings, methods=["POST"]),
    Route("/embeddings", embeddings, methods=["POST"]),
    Route("/v1/embeddings", openai_embeddings, methods=["POST"]),
    *(
        Route(path, rerank, methods=["POST"], include_in_schema=False)
        for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
    ),
]
