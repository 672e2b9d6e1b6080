"""The loaded adapters and the scales that requests without a list of their own get: GET and POST /lora-adapters."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.adapter_registry import AdapterCard
from server.door import engine_of
from server.errors import JsonResponse
from server.schemas import read_json


async def lora_adapters(request: Request) -> Response:
    """List the adapters with their current scales, or replace the scales. Requests that run or wait keep the list
    they came with.
    """
    adapters = engine_of(request).adapters
    if request.method == "POST":
        adapters.set_scales(await read_json(request))
        return JsonResponse({"success": True})
    return JsonResponse(
        [
            {"id": index, "path": card.path, "scale": scale, **_description(card)}
            for index, (card, scale) in enumerate(zip(adapters.adapters, adapters.scales, strict=True))
        ]
    )


def _description(card: AdapterCard) -> dict[str, object]:
    description: dict[str, object] = {"task_name": card.task_name, "prompt_prefix": card.prompt_prefix}
    if card.invocation_tokens:
        description["alora_invocation_string"] = card.invocation_text
        description["alora_invocation_tokens"] = list(card.invocation_tokens)
    return description


routes = [Route("/lora-adapters", lora_adapters, methods=["GET", "POST"])]
