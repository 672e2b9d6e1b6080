"""What the server says about itself: health, models, props, slots, metrics. Reads the engine and changes nothing."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler.request import Request as GenerationRequest
from server.adapters.catalog import Mix, shortest
from server.edge.door import Door, engine_of
from server.edge.header_name import HeaderName
from server.engine import Engine
from server.errors import FeatureOff, JsonResponse, NoSlotFree, ServerClosing
from server.native_format import sampling_settings
from server.shapes.answers import (
    Health,
    MixPart,
    ModelCommon,
    ModelMeta,
    NamedModel,
    Props,
    ServedBase,
    ServedMix,
    ServedModel,
    ServedModels,
    Slot,
    Success,
)
from server.version import BUILD


async def health(request: Request) -> Response:
    """Say whether new requests are taken."""
    door: Door = request.app.state.door
    if door.is_closing:
        raise ServerClosing
    answer: Health = {"status": "ok"}
    return JsonResponse(answer)


async def models(request: Request) -> Response:
    """List the base model, then the adapters and the mixes of them; in `models` what llama-server's clients read."""
    engine = engine_of(request)
    card = engine.model
    entry: NamedModel = {
        "name": card.name,
        "model": card.name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": card.format,
            "family": card.family,
            "families": [card.family],
            "parameter_size": _in_words(card.n_params),
            "quantization_level": card.file_type,
        },
    }
    answer: ServedModels = {"models": [entry], "object": "list", "data": _served_models(engine)}
    return JsonResponse(answer)


def _served_models(engine: Engine) -> list[ServedBase | ServedMix | ServedModel]:
    card = engine.model
    common: ModelCommon = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "cohort",
        "max_model_len": card.n_ctx,
    }
    meta: ModelMeta = {
        "n_vocab": card.n_vocab,
        "n_ctx": card.n_ctx,
        "n_ctx_train": card.n_ctx_train,
        "n_embd": card.n_embd,
        "n_params": card.n_params,
        "size": card.num_bytes,
        "ftype": card.file_type,
    }
    base: ServedBase = {
        "id": card.name,
        "aliases": list(card.names),
        "tags": [tag.strip() for tag in engine.settings.tags.split(",") if tag.strip()],
        **common,
        "root": card.path,
        "parent": None,
        "meta": meta,
    }
    catalog = engine.adapters.catalog
    adapters: list[ServedModel] = [
        {"id": entry.name, **common, "root": entry.path, "parent": card.name} for entry in catalog.entries
    ]
    mixes: list[ServedMix] = [
        {"id": mix.name, **common, "root": card.path, "parent": card.name, "lora": _parts(mix)} for mix in catalog.mixes
    ]
    return [base, *adapters, *mixes]


def _parts(mix: Mix) -> list[MixPart]:
    return [{"name": name, "scale": shortest(scale)} for name, scale in mix.parts]


def _in_words(num_params: int) -> str:
    return f"{num_params / 1e9:.2f}B" if num_params >= 1e9 else f"{num_params / 1e6:.0f}M"


async def props(request: Request) -> Response:
    """Say how the server is set up."""
    engine = engine_of(request)
    card, settings = engine.model, engine.settings
    sampling = sampling_settings(engine.default_sampling)
    answer: Props = {
        "default_generation_settings": {
            "params": {**sampling, "n_predict": settings.n_predict, "lora": engine.adapters.current_scales()},
            "n_ctx": card.n_ctx,
        },
        "total_slots": engine.loop.scheduler.limits.num_slots,
        "model_alias": card.name,
        "model_ftype": card.file_type,
        "model_path": card.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.slots,
        "endpoint_props": settings.props,
        "endpoint_metrics": settings.metrics,
        "chat_template": engine.chat_template.source if engine.chat_template else "",
        "bos_token": engine.tokenizer.bos_text,
        "eos_token": engine.tokenizer.eos_text,
        "build_info": BUILD,
        "is_sleeping": request.app.state.models.is_asleep,
    }
    return JsonResponse(answer)


async def set_props(request: Request) -> Response:
    """Change nothing, as in llama-server, where --props enables it."""
    if not engine_of(request).settings.props:
        raise FeatureOff("This server does not support changing global properties. Start it with `--props`")
    answer: Success = {"success": True}
    return JsonResponse(answer)


async def slots(request: Request) -> Response:
    """Show what each slot does. `?fail_on_no_slot=1` turns "none is idle" into a 503."""
    engine = engine_of(request)
    if not engine.settings.slots:
        raise FeatureOff("This server does not support slots endpoint. Start it without `--no-slots`")
    running, latest = engine.loop.scheduler.running, engine.loop.scheduler.last_in_slot
    num_slots = engine.loop.scheduler.limits.num_slots
    if request.query_params.get("fail_on_no_slot") and len(running) == num_slots:
        raise NoSlotFree
    return JsonResponse(
        [
            _slot(engine, slot_id, running.get(slot_id, latest.get(slot_id)), is_running=slot_id in running)
            for slot_id in range(num_slots)
        ]
    )


def _slot(engine: Engine, slot_id: int, request: GenerationRequest | None, *, is_running: bool) -> Slot:
    """Show a slot with its latest request, None where it has had none."""
    slot: Slot = {
        "id": slot_id,
        "n_ctx": engine.model.n_ctx,
        "speculative": False,
        "is_processing": is_running,
    }
    if request is None:
        return slot
    num_prompt = len(request.prompt)
    num_computed = min(request.num_computed, num_prompt) if is_running else num_prompt
    scales = engine.adapters.scales_of(request.key) if engine.adapters.knows(request.key) else []
    return {
        **slot,
        "id_task": request.request_id,
        "n_prompt_tokens": num_prompt,
        "n_prompt_tokens_processed": max(num_computed - request.num_cached, 0),
        "n_prompt_tokens_cache": request.num_cached,
        "params": {
            **sampling_settings(request.sampling),
            "n_predict": request.max_new_tokens,
            "lora": scales,
        },
        "next_token": [
            {
                "has_next_token": is_running,
                "n_remain": request.max_new_tokens - len(request.output) if is_running else -1,
                "n_decoded": len(request.output) if is_running else 0,
            }
        ],
    }


async def metrics(request: Request) -> Response:
    """Expose the metrics to Prometheus, in the format it asks for."""
    engine = engine_of(request)
    if not engine.settings.metrics:
        raise FeatureOff("This server does not support metrics endpoint. Start it without `--no-metrics`")
    body, content_type = engine.metrics.render(request.headers.get("accept", ""))
    response = Response(body, headers={"content-type": content_type})
    response.raw_headers.append((HeaderName(b"Process-Start-Time-Unix"), b"%d" % engine.metrics.started_s))
    return response


routes = [
    Route("/health", health, methods=["GET"]),
    Route("/v1/health", health, methods=["GET"]),
    Route("/models", models, methods=["GET"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/props", props, methods=["GET"]),
    Route("/props", set_props, methods=["POST"], include_in_schema=False),
    Route("/slots", slots, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
]
