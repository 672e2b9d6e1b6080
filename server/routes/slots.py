"""The KV of slots on disk: POST /slots/N?action=save, restore or erase. A slot stands for its latest request."""

from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler.request import Request as GenerationRequest
from server.arrival import list_for_now
from server.edge.door import engine_of
from server.engine import Engine
from server.errors import BodyInvalid, FeatureOff, FieldInvalid, JsonResponse, SlotRefused
from server.fields import Text
from server.schemas import ListFields, read_body
from server.shapes.answers import SlotErased, SlotRestored, SlotSaved
from server.slots.store import SlotStore

_MAX_DIGITS = 18
"""Of a slot's number, which wraps round."""


class SlotFileBody(ListFields):
    """The body of save and restore. `model` and `lora` are for restore: the list that the file must be of."""

    filename: Text = ""


async def slot_action(request: Request) -> Response:
    """Save the KV of a slot's latest request to a file, make that of a file findable, or make a slot's findable no
    more."""
    engine = engine_of(request)
    store = engine.slot_store
    if store is None:
        raise FeatureOff("This server does not support slots action. Start it with `--slot-save-path`")
    digits = request.path_params["id_slot"]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise BodyInvalid("Invalid slot ID")
    slot_id = int(digits) % engine.loop.scheduler.limits.num_slots
    action = request.query_params.get("action")
    if action == "erase":
        return _erase(engine, slot_id)
    if action not in ("save", "restore"):
        raise BodyInvalid("Invalid action")
    body = await read_body(request, SlotFileBody, engine.unknown_fields)
    if not body.filename:
        raise FieldInvalid("filename", "is required")
    if action == "save":
        return await _save(engine, store, slot_id, body)
    return await _restore(request, engine, store, slot_id, body)


def _latest(engine: Engine, slot_id: int) -> GenerationRequest | None:
    return engine.loop.scheduler.last_in_slot.get(slot_id)


async def _save(engine: Engine, store: SlotStore, slot_id: int, body: SlotFileBody) -> Response:
    latest = _latest(engine, slot_id)
    if latest is None:
        raise SlotRefused(f"Unable to save slot: slot {slot_id} has had no request yet")
    saved = await store.save(latest, body.filename, engine.adapters.names_of(latest.key))
    answer: SlotSaved = {
        "id_slot": slot_id,
        "filename": body.filename,
        "n_saved": saved.num_tokens,
        "n_written": saved.num_bytes,
        "timings": {"save_ms": saved.duration_ms},
    }
    return JsonResponse(answer)


async def _restore(request: Request, engine: Engine, store: SlotStore, slot_id: int, body: SlotFileBody) -> Response:
    async with AsyncExitStack() as held:
        served = None
        if body.lora is not None or body.model is not None:
            served = await held.enter_async_context(list_for_now(request, engine, body))
        residents = engine.adapters.residency.residents if served is None else served.lease.residents.values()
        restored = await store.restore(body.filename, residents, served)
    answer: SlotRestored = {
        "id_slot": slot_id,
        "filename": body.filename,
        "n_restored": restored.num_tokens,
        "n_read": restored.num_bytes,
        "timings": {"restore_ms": restored.duration_ms},
    }
    return JsonResponse(answer)


def _erase(engine: Engine, slot_id: int) -> Response:
    latest = _latest(engine, slot_id)
    num_erased = 0 if latest is None else engine.loop.scheduler.kv.forget(latest)
    answer: SlotErased = {"id_slot": slot_id, "n_erased": num_erased}
    return JsonResponse(answer)


routes = [Route("/slots/{id_slot}", slot_action, methods=["POST"])]
