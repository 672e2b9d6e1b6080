"""What operators do to a running server: POST /admin/models/load."""

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.allowed_folders import AllowedFolders
from server.edge.door import engine_of
from server.errors import JsonResponse, PathUnknown
from server.fields import Text
from server.model_swap import ServedModels
from server.schemas import read_body
from server.shapes.answers import ModelLoaded


class LoadModelBody(BaseModel):
    """The body of /admin/models/load."""

    model: Text
    """A path as after -m, inside one of the folders of --model-dir."""
    alias: Text | None = None
    """As after --alias; None leaves the model's names in the API as they are."""


async def load_model(request: Request) -> Response:
    """Load another model with the same adapters, and serve it from then on. Answered when that has happened."""
    engine = engine_of(request)
    folders = AllowedFolders(engine.settings.model_dir, "--model-dir")
    if not folders:
        raise PathUnknown
    body = await read_body(request, LoadModelBody, engine.unknown_fields)
    names = {} if body.alias is None else {"alias": body.alias}
    settings = engine.settings.model_copy(update={"model": folders.resolve(body.model, "model"), **names})
    models: ServedModels = request.app.state.models
    loaded = await models.replace(settings)
    answer: ModelLoaded = {"success": True, "model": loaded.model.name}
    return JsonResponse(answer)


routes = [Route("/admin/models/load", load_model, methods=["POST"])]
