"""What operators do to a running server: POST /admin/models/load."""

from pathlib import Path

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.door import engine_of
from server.errors import FieldInvalid, JsonResponse, PathForbidden, PathUnknown
from server.fields import Text
from server.model_swap import ServedModels
from server.schemas import read_body
from server.settings import Settings


class LoadModelBody(BaseModel):
    """The body of /admin/models/load."""

    model: Text
    """A path as after -m, inside one of the folders of --model-dir."""
    alias: Text | None = None
    """As after --alias; None leaves the model's names in the API as they are."""


async def load_model(request: Request) -> Response:
    """Load another model with the same adapters, and serve it from then on. Answered when that has happened."""
    engine = engine_of(request)
    folders = _folders(engine.settings)
    if not folders:
        raise PathUnknown
    body = await read_body(request, LoadModelBody, engine.unknown_fields)
    names = {} if body.alias is None else {"alias": body.alias}
    settings = engine.settings.model_copy(update={"model": _allowed(body.model, folders), **names})
    models: ServedModels = request.app.state.models
    loaded = await models.replace(settings)
    return JsonResponse({"success": True, "model": loaded.model.name})


def _folders(settings: Settings) -> list[Path]:
    return [Path(folder.strip()).resolve() for folder in settings.model_dir.split(",") if folder.strip()]


def _allowed(model: str, folders: list[Path]) -> Path:
    """Return the path without links and dots. Raises FieldInvalid where it is none, PathForbidden where it is outside
    all of `folders`.
    """
    try:
        path = Path(model).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null character
        raise FieldInvalid("model", f"must be a path, but got {model[:200]!r}: {error}") from error
    if not any(path.is_relative_to(folder) for folder in folders):
        raise PathForbidden(f"Field 'model': {model[:200]!r} is outside the folders that --model-dir allows")
    return path


routes = [Route("/admin/models/load", load_model, methods=["POST"])]
