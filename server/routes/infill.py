"""Filling in the middle: llama-server's /infill, and what OpenAI's field `suffix` asks for."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.routing import Route

from model.tokens.tokenizer import Tokenizer
from server import unsupported
from server.arrival import list_for_answer
from server.edge.door import engine_of
from server.engine import Engine
from server.errors import BodyInvalid, FeatureOff, FieldInvalid
from server.fields import JsonArray, Text
from server.generation import Prompt, encode_prompt, make_choices, read_prompt
from server.infill import Gap, infill_prompt
from server.native_format import NativeDialect
from server.schemas import CompletionBody, GenerationBody, read_body
from server.shapes.fields import ContextChunk, documented
from server.streaming import Answer


class InfillBody(CompletionBody):
    """The body of /infill."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = unsupported.NEUTRAL_WITHOUT_CHAT | {
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: Text = ""
    """What the text to fill in begins with."""
    input_prefix: Annotated[object, documented(str | list[int | str])] = None
    input_suffix: Annotated[object, documented(str | list[int | str])] = None
    input_extra: Annotated[JsonArray, documented(list[ContextChunk])] = Field([])


async def infill(request: Request) -> Answer:
    """Fill in what is missing between two texts, and answer in llama-server's form."""
    engine = engine_of(request)
    body = await read_body(request, InfillBody, engine.unknown_fields)
    async with list_for_answer(request, engine, body) as served:
        tokenizer = served.tokenizer
        if missing := tokenizer.vocabulary.fim.missing:
            reasons = "".join(f"{name} token is missing. " for name in missing)
            raise FeatureOff(f"Infill is not supported by this model: {reasons}")
        gap = Gap(
            before=await _around(tokenizer, body.input_prefix, "input_prefix"),
            after=await _around(tokenizer, body.input_suffix, "input_suffix"),
            begun=await encode_prompt(tokenizer, (body.prompt,), "prompt", add_special=False),
            chunks=[_read_chunk(chunk, f"input_extra[{index}]") for index, chunk in enumerate(body.input_extra)],
        )
        prompt = await _prompt(engine, body, tokenizer, gap)
        choices = await make_choices(engine, body, served, [prompt])
        return Answer(engine, choices, body, NativeDialect(engine, body, served, body.n > 1))


async def fill_in(engine: Engine, body: CompletionBody, tokenizer: Tokenizer, prompts: list[Prompt]) -> list[Prompt]:
    """Return what asks for the text between each prompt and the field `suffix`. Raises FieldInvalid where the model has
    no tokens for that.
    """
    if tokenizer.vocabulary.fim.missing:
        raise FieldInvalid("suffix", f"this model has no tokens for filling in, but got {body.suffix[:200]!r}")
    after = await encode_prompt(tokenizer, (body.suffix,), "suffix", add_special=False, parse_special=False)
    asked = []
    for prompt in prompts:
        before = await encode_prompt(tokenizer, prompt, "prompt", add_special=False, parse_special=False)
        asked.append(await _prompt(engine, body, tokenizer, Gap(before, after)))
    return asked


async def _around(tokenizer: Tokenizer, value: object, field: str) -> tuple[int, ...]:
    if value is None:
        raise BodyInvalid(f'"{field}" is required')
    return await encode_prompt(tokenizer, read_prompt(value, field), field, add_special=False, parse_special=False)


def _read_chunk(chunk: object, field: str) -> tuple[str, str]:
    """Return the name and the text of a chunk of context."""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("text"), str):
        raise FieldInvalid(field, 'extra_context chunk must contain a "text" field with a string value')
    name = chunk.get("filename", "tmp")
    if not isinstance(name, str):
        raise FieldInvalid(f"{field}.filename", 'extra_context chunk\'s "filename" field must be a string')
    return name, chunk["text"]


async def _prompt(engine: Engine, body: GenerationBody, tokenizer: Tokenizer, gap: Gap) -> Prompt:
    wanted = engine.settings.n_predict if body.n_predict is None else body.n_predict
    n_ctx, suffix_first = engine.loop.scheduler.limits.max_context, engine.settings.spm_infill
    # On a thread: chunks may be long, and tokenising them would delay everybody's tokens.
    return await asyncio.to_thread(infill_prompt, tokenizer, gap, n_ctx, wanted, suffix_first=suffix_first)


routes = [Route("/infill", infill, methods=["POST"])]
