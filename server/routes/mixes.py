"""Names for adapter lists: GET, POST and DELETE /v1/mixes. A mix is asked for as `model`."""

from typing import Annotated

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.adapters.catalog import AdapterCatalog, Mix, NameRefused, shortest
from server.edge.door import engine_of
from server.errors import FieldInvalid, JsonResponse, ModelUnknown
from server.fields import JsonObject, Text
from server.schemas import read_body
from server.shapes.answers import MixDeleted, ShownMix, ShownMixes
from server.shapes.fields import AdapterList, documented


class MixBody(BaseModel):
    """The body of POST /v1/mixes: one of `adapters` and `lora`."""

    name: Text = ""
    adapters: Annotated[JsonObject, documented(dict[str, float])] | None = None
    """`{"adapter name": scale}`."""
    lora: Annotated[object, documented(AdapterList)] = None
    """A list as in a request."""


class MixName(BaseModel):
    """The body of DELETE /v1/mixes."""

    name: Text = ""


async def mixes(request: Request) -> Response:
    """List the mixes, define one (or define it anew), or forget one. Requests that run or wait keep the list they came
    with.
    """
    engine = engine_of(request)
    catalog = engine.adapters.catalog
    if request.method == "GET":
        listed: ShownMixes = {"object": "list", "data": [_shown(mix) for mix in catalog.mixes]}
        return JsonResponse(listed)
    if request.method == "DELETE":
        name = (await read_body(request, MixName, engine.unknown_fields)).name
        try:
            catalog.remove_mix(name)
        except KeyError:
            raise ModelUnknown(f"there is no mix {name[:200]!r}") from None
        deleted: MixDeleted = {"name": name, "deleted": True}
        return JsonResponse(deleted)
    body = await read_body(request, MixBody, engine.unknown_fields)
    return JsonResponse(_shown(_define(catalog, body)))


def _define(catalog: AdapterCatalog, body: MixBody) -> Mix:
    if (body.adapters is None) == (body.lora is None):
        raise FieldInvalid("adapters", "give either 'adapters' or 'lora'")
    if body.adapters is None:
        field, parts = "lora", [(entry.name, scale) for entry, scale in catalog.read_list(body.lora, "lora")]
    else:
        field, parts = "adapters", [(name, _scale(name, value)) for name, value in body.adapters.items()]
    try:
        return catalog.define_mix(body.name, parts)
    except NameRefused as error:
        raise FieldInvalid("name", str(error)) from error
    except ValueError as error:
        raise FieldInvalid(field, str(error)) from error


def _scale(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise FieldInvalid(f"adapters.{name}", f"must be a number, but got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise FieldInvalid(f"adapters.{name}", "must be a finite number in float32") from None


def _shown(mix: Mix) -> ShownMix:
    return {"name": mix.name, "adapters": {name: shortest(scale) for name, scale in mix.parts}}


routes = [Route("/v1/mixes", mixes, methods=["GET", "POST", "DELETE"])]
