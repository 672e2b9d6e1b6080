"""Loading and unloading adapters at run time, with vLLM's paths, bodies and answers, where --lora-load-dir allows it.

Source: vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter. `pinned` and `force` are ours.
"""

from typing import Annotated

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from server import adapter_operations
from server.allowed_folders import AllowedFolders
from server.edge.door import engine_of
from server.engine import Engine
from server.errors import AdapterRefused, FieldInvalid, PathUnknown
from server.fields import Flag, Text, whole
from server.schemas import read_body


class LoadBody(BaseModel):
    """The body of /v1/load_lora_adapter."""

    lora_name: Text = ""
    lora_path: Text = ""
    """Inside one of the folders of --lora-load-dir."""
    load_inplace: Flag = False
    """Replace the adapter of that name, if there is one."""
    pinned: Flag | None = None
    """Never evict it; None: as the one that it replaces."""
    is_3d_lora_weight: Flag = False


class UnloadBody(BaseModel):
    """The body of /v1/unload_lora_adapter."""

    lora_name: Text = ""
    lora_int_id: Annotated[int, whole(0)] | None = None
    force: Flag = False
    """End the requests that use it, instead of waiting for them."""


async def load_adapter(request: Request) -> Response:
    """Load an adapter from an allowed folder; answered when requests can use it."""
    engine = engine_of(request)
    folders = _folders(engine)
    body = await read_body(request, LoadBody, engine.unknown_fields)
    if not body.lora_name or not body.lora_path:
        raise AdapterRefused("'lora_name' and 'lora_path' are both required")
    if body.is_3d_lora_weight:
        raise FieldInvalid("is_3d_lora_weight", "is not supported; experts are read as PEFT saves them")
    path = folders.resolve(body.lora_path, "lora_path")
    await adapter_operations.load(engine, body.lora_name, path, in_place=body.load_inplace, is_pinned=body.pinned)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Unload an adapter; answered when its memory is free."""
    engine = engine_of(request)
    _folders(engine)
    body = await read_body(request, UnloadBody, engine.unknown_fields)
    if not body.lora_name:
        raise AdapterRefused("'lora_name' is required")
    await adapter_operations.unload(engine, body.lora_name, body.lora_int_id, by_force=body.force)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _folders(engine: Engine) -> AllowedFolders:
    """Return the folders of the setting. Raises PathUnknown where there are none: then these paths do not exist."""
    folders = AllowedFolders(engine.settings.lora_load_dir, "--lora-load-dir")
    if not folders:
        raise PathUnknown
    return folders


routes = [
    Route("/v1/load_lora_adapter", load_adapter, methods=["POST"]),
    Route("/v1/unload_lora_adapter", unload_adapter, methods=["POST"]),
]
