"""The loaded adapters and the scales that requests without a list of their own get: GET and POST /lora-adapters."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.adapter_catalog import AdapterEntry, shortest
from server.door import engine_of
from server.engine import Engine
from server.errors import JsonResponse
from server.schemas import read_json


async def lora_adapters(request: Request) -> Response:
    """List the adapters with their current scales, or replace the scales. Requests that run or wait keep the list
    they came with.
    """
    engine = engine_of(request)
    catalog = engine.adapters.catalog
    if request.method == "POST":
        catalog.set_scales(await read_json(request))
        return JsonResponse({"success": True})
    return JsonResponse(
        [
            {
                "id": entry.id,
                "path": entry.path,
                "scale": shortest(catalog.scale_of(entry)),
                **_described(engine, entry),
            }
            for entry in catalog.entries
        ]
    )


def _described(engine: Engine, entry: AdapterEntry) -> dict[str, object]:
    resident = engine.adapters.residency.resident(entry)
    if resident is None:
        return {"task_name": "", "prompt_prefix": ""}
    description: dict[str, object] = {"task_name": resident.task_name, "prompt_prefix": resident.prompt_prefix}
    if resident.invocation_tokens:
        description["alora_invocation_string"] = engine.tokenizer.decode(resident.invocation_tokens)
        description["alora_invocation_tokens"] = list(resident.invocation_tokens)
    return description


routes = [Route("/lora-adapters", lora_adapters, methods=["GET", "POST"])]
