"""The loaded adapters and the scales that requests without a list of their own get: GET and POST /lora-adapters."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.adapters.catalog import AdapterEntry, shortest
from server.edge.door import engine_of
from server.engine import Engine
from server.errors import JsonResponse
from server.schemas import read_json
from server.shapes.answers import LoadedAdapter, Success


async def lora_adapters(request: Request) -> Response:
    """List the adapters with their current scales, or replace the scales. Requests that run or wait keep the list
    they came with.
    """
    engine = engine_of(request)
    catalog = engine.adapters.catalog
    if request.method == "POST":
        catalog.set_scales(await read_json(request))
        done: Success = {"success": True}
        return JsonResponse(done)
    return JsonResponse([_shown(engine, entry) for entry in catalog.entries])


def _shown(engine: Engine, entry: AdapterEntry) -> LoadedAdapter:
    resident = engine.adapters.residency.resident(entry)
    shown: LoadedAdapter = {
        "id": entry.id,
        "path": entry.path,
        "scale": shortest(engine.adapters.catalog.scale_of(entry)),
        "task_name": "" if resident is None else resident.task_name,
        "prompt_prefix": "" if resident is None else resident.prompt_prefix,
    }
    if resident is not None and resident.invocation_tokens:
        shown["alora_invocation_string"] = engine.tokenizer.decode(resident.invocation_tokens)
        shown["alora_invocation_tokens"] = list(resident.invocation_tokens)
    return shown


routes = [Route("/lora-adapters", lora_adapters, methods=["GET", "POST"])]
