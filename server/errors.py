"""Which error becomes which HTTP status, and the form that error answers have. No other file decides either.

The form is llama-server's: `{"error": {"code": 400, "message": "…", "type": "invalid_request_error"}}`, which OpenAI's
clients read as well. On the paths of Anthropic's Messages API it is that API's, with its types and statuses:
`{"type": "error", "error": {"type": "invalid_request_error", "message": "…"}}`. Streams that have begun carry the same
object in a frame.

RequestError
├── BodyInvalid         the body is not what the route takes at all
├── BodyTooLarge        it is longer than a setting allows
├── FieldInvalid        one field of it is
├── ApiKeyInvalid
├── PathUnknown
├── ClientLeft          nobody will read the answer
├── PathForbidden       a file or folder outside those that a setting allows
├── LoadInProgress      another model is being loaded
├── ModelRefused        the next model, or an adapter for it, cannot be loaded; the present one is served on
├── ModelUnknown        `model` names nothing that is served
│   └── ModelNotFound   the same, told in OpenAI's own form
├── AdapterRefused      an adapter that cannot be loaded or unloaded as asked for
├── SlotRefused         a slot that cannot be saved or restored as asked for
├── SlotNotSaved        its file cannot be written
├── AdapterUnknown      an adapter to unload that there is not
├── FeatureOff          a setting switches the route off
├── ModelLoading
├── ServerClosing
├── NoSlotFree
├── ServerBusy          the queue is full
└── GenerationFailed    the step that computed the request failed, or the server stopped before it was done
    ├── Unanswerable    what the request asks for leaves no token to choose
    └── TimeUp          the request waited so long that its time was over before its first token
"""

import json

from starlette.responses import Response

from model.adapters.tensors import AdapterError
from model.tokens.chat_template import TemplateError
from scheduler.errors import PromptRefused, PromptTooLong, Unavailable

RETRY_AFTER_S = 1
"""What a refused client is told to wait where nothing better is known."""


class RequestError(Exception):
    """A request that gets an error answer; the message is for the client."""


class BodyInvalid(RequestError):
    """The body cannot be read, or has the wrong outer form."""


class BodyTooLarge(RequestError):
    """The body is longer than the server reads."""

    def __init__(self, num_bytes: int, max_bytes: int) -> None:
        """`num_bytes` is its length where it says so, else what had come when it was too much."""
        super().__init__(f"Request body has {num_bytes} bytes or more, the limit is {max_bytes}")


class FieldInvalid(RequestError):
    """A field has a value that cannot be honoured."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"Field '{field}': {reason}")
        self.field = field


class ApiKeyInvalid(RequestError):
    """The request carries no API key, or one that the server does not know."""

    def __init__(self) -> None:
        super().__init__("Invalid API Key")


class PathUnknown(RequestError):
    """There is no such path, or it does not take this method."""

    def __init__(self) -> None:
        super().__init__("File Not Found")


class ClientLeft(RequestError):
    """The client has gone away before its request had begun; the answer is for the log."""

    def __init__(self) -> None:
        super().__init__("the client has gone away")


class PathForbidden(RequestError):
    """The request names a file or folder that a setting keeps out of reach."""


class LoadInProgress(RequestError):
    """A model is being loaded already, and there is one such load at a time."""


class ModelRefused(RequestError):
    """The model that was to be served next cannot be; nothing has changed."""


class ModelUnknown(RequestError):
    """The request's `model` is the name of nothing that is served, where such a name must be right."""


class ModelNotFound(ModelUnknown):
    """A ModelUnknown on OpenAI's routes, whose clients look for its code."""


class AdapterRefused(RequestError):
    """An adapter cannot be loaded, or not unloaded, as the request says. Nothing has changed."""


class SlotRefused(RequestError):
    """A slot cannot be saved, or not from the file that the request names."""


class SlotNotSaved(RequestError):
    """The file of a slot cannot be written, which is no fault of the request."""


class AdapterUnknown(RequestError):
    """There is no adapter of the name that is to be unloaded."""


class FeatureOff(RequestError):
    """The route exists, and a setting has switched it off."""


class ModelLoading(RequestError):
    """The server listens already, and the model is not ready yet."""

    def __init__(self) -> None:
        super().__init__("Loading model")


class ServerClosing(RequestError):
    """The server takes no new requests and ends soon."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class NoSlotFree(RequestError):
    """Every slot is in use, and the client asked to be told so."""

    def __init__(self) -> None:
        super().__init__("no slot available")


class ServerBusy(RequestError):
    """As many requests wait as may; `retry_after_s` is when there is likely to be room."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GenerationFailed(RequestError):
    """An accepted request ended without its answer."""


class Unanswerable(GenerationFailed):
    """What an accepted request asks for leaves no token to choose, which only showed while it ran."""


class TimeUp(GenerationFailed):
    """The time of an accepted request was over before it had a token."""


_TABLE: dict[type[Exception], tuple[int, str]] = {
    BodyInvalid: (400, "invalid_request_error"),
    BodyTooLarge: (413, "invalid_request_error"),
    FieldInvalid: (400, "invalid_request_error"),
    TemplateError: (400, "invalid_request_error"),
    PromptTooLong: (400, "exceed_context_size_error"),
    PromptRefused: (400, "invalid_request_error"),
    SlotRefused: (400, "invalid_request_error"),
    ApiKeyInvalid: (401, "authentication_error"),
    ModelRefused: (400, "invalid_request_error"),
    PathForbidden: (403, "permission_error"),
    LoadInProgress: (409, "conflict_error"),
    PathUnknown: (404, "not_found_error"),
    ModelUnknown: (404, "not_found_error"),
    AdapterRefused: (400, "InvalidUserInput"),  # vLLM's words, on its paths
    AdapterUnknown: (404, "NotFoundError"),
    ClientLeft: (499, "invalid_request_error"),
    AdapterError: (500, "server_error"),
    SlotNotSaved: (500, "server_error"),
    GenerationFailed: (500, "server_error"),
    FeatureOff: (501, "not_supported_error"),
    ModelLoading: (503, "unavailable_error"),
    ServerClosing: (503, "unavailable_error"),
    NoSlotFree: (503, "unavailable_error"),
    ServerBusy: (503, "unavailable_error"),
    Unanswerable: (400, "invalid_request_error"),
    TimeUp: (503, "unavailable_error"),
    Unavailable: (503, "unavailable_error"),
}

_MESSAGES_TABLE: dict[type[Exception], tuple[int, str]] = {
    FeatureOff: (400, "invalid_request_error"),
    NoSlotFree: (529, "overloaded_error"),
    ServerBusy: (529, "overloaded_error"),
    TimeUp: (504, "timeout_error"),
}
"""Where Anthropic's API has a status of its own."""
_MESSAGES_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
MESSAGES_PATH = "/v1/messages"
"""Here and below errors have Anthropic's form."""

KNOWN: tuple[type[Exception], ...] = tuple(_TABLE)
"""Every exception that has a row in the table."""


def status_of(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the error type of `error`; 500 for one that has no row in the table."""
    for kind in type(error).__mro__:
        if issubclass(kind, Exception) and kind in _TABLE:
            return _TABLE[kind]
    return 500, "server_error"


def error_body(error: Exception) -> dict[str, object]:
    """Return the JSON object that tells a client about `error`."""
    status, kind = status_of(error)
    body: dict[str, object] = {"code": status, "message": error_message(error), "type": kind}
    if isinstance(error, ModelNotFound):
        body |= {"code": "model_not_found", "type": "invalid_request_error", "param": "model"}
    if isinstance(error, PromptTooLong):
        body["n_prompt_tokens"] = error.num_tokens
        body["n_ctx"] = error.max_context
    return {"error": body}


def messages_error_body(error: Exception) -> dict[str, object]:
    """Return the JSON object that tells a client of Anthropic's about `error`."""
    _, kind = _messages_status_of(error)
    return {"type": "error", "error": {"type": kind, "message": error_message(error)}}


def error_message(error: Exception) -> str:
    """Return what a client is told about `error`; of a bug, nothing but that there is one."""
    return str(error) if isinstance(error, KNOWN) else "internal error; the server's log has the details"


def _messages_status_of(error: Exception) -> tuple[int, str]:
    for kind in type(error).__mro__:
        if issubclass(kind, Exception) and kind in _MESSAGES_TABLE:
            return _MESSAGES_TABLE[kind]
    status, _ = status_of(error)
    return status, _MESSAGES_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_response(error: Exception, path: str) -> Response:
    """Return the answer to a request to `path` that ended in `error` before any of its answer was sent."""
    status, _ = status_of(error)
    if path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/"):
        status, _ = _messages_status_of(error)
        response = JsonResponse(messages_error_body(error), status_code=status)
    else:
        response = JsonResponse(error_body(error), status_code=status)
    if status in (503, 529):
        retry_after_s = error.retry_after_s if isinstance(error, ServerBusy) else RETRY_AFTER_S
        response.headers["Retry-After"] = str(retry_after_s)
    return response


class JsonResponse(Response):
    """A JSON answer with llama-server's content type."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: object) -> bytes:
        """Return `content` as JSON text; NaN and infinity are bugs here."""
        return dump_json(content)


def dump_json(content: object) -> bytes:
    """Return `content` as compact JSON in UTF-8."""
    return _ENCODER.encode(content).encode()


# `json.dumps` makes a new one each time, which takes as long as a token's frame.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
