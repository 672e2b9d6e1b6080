"""The table from exceptions to answers."""

import json

import pytest

from model.tokens.chat_template import TemplateError
from scheduler import errors as scheduler_errors
from scheduler.errors import PromptEmpty, PromptTooLong, QueueFull, Refusal, ShuttingDown
from server import errors
from server.adapters.catalog import AdapterListError
from server.errors import KNOWN, RequestError, error_body, error_response, status_of


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.BodyInvalid("x"), 400, "invalid_request_error"),
        (errors.FieldInvalid("field", "x"), 400, "invalid_request_error"),
        (AdapterListError("lora", 5, "x"), 400, "invalid_request_error"),
        (TemplateError("x"), 400, "invalid_request_error"),
        (PromptEmpty(), 400, "invalid_request_error"),
        (PromptTooLong(9, 8), 400, "exceed_context_size_error"),
        (errors.ApiKeyInvalid(), 401, "authentication_error"),
        (errors.PathUnknown(), 404, "not_found_error"),
        (errors.GenerationFailed("x"), 500, "server_error"),
        (errors.FeatureOff("x"), 501, "not_supported_error"),
        (errors.ModelLoading(), 503, "unavailable_error"),
        (errors.ServerClosing(), 503, "unavailable_error"),
        (errors.NoSlotFree(), 503, "unavailable_error"),
        (errors.ServerBusy("x", 7), 503, "unavailable_error"),
        (errors.TimeUp("x"), 503, "unavailable_error"),
        (QueueFull(9, 8), 503, "unavailable_error"),
        (ShuttingDown(), 503, "unavailable_error"),
    ],
)
def test_each_error_has_its_status_and_type(error: Exception, status: int, kind: str) -> None:
    assert status_of(error) == (status, kind)
    response = error_response(error, "/completion")
    assert response.status_code == status
    body = json.loads(bytes(response.body))["error"]
    assert (body["code"], body["type"], body["message"]) == (status, kind, str(error))
    assert ("retry-after" in response.headers) == (status == 503)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.FieldInvalid("field", "x"), 400, "invalid_request_error"),
        (PromptTooLong(9, 8), 400, "invalid_request_error"),
        (errors.ApiKeyInvalid(), 401, "authentication_error"),
        (errors.PathForbidden("x"), 403, "permission_error"),
        (errors.ModelUnknown("x"), 404, "not_found_error"),
        (errors.BodyTooLarge(9, 8), 413, "request_too_large"),
        (errors.GenerationFailed("x"), 500, "api_error"),
        (errors.FeatureOff("x"), 400, "invalid_request_error"),
        (errors.ModelLoading(), 503, "overloaded_error"),
        (errors.ServerClosing(), 503, "overloaded_error"),
        (ShuttingDown(), 503, "overloaded_error"),
        (errors.ServerBusy("x", 7), 529, "overloaded_error"),
        (errors.TimeUp("x"), 504, "timeout_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_of_the_messages_api_have_its_form(error: Exception, status: int, kind: str, path: str) -> None:
    response = error_response(error, path)
    assert response.status_code == status
    body = json.loads(bytes(response.body))
    assert body == {"type": "error", "error": {"type": kind, "message": str(error)}}
    assert ("retry-after" in response.headers) == (status in (503, 529))


def test_other_paths_keep_the_form_of_llama_server() -> None:
    assert "type" not in json.loads(bytes(error_response(errors.PathUnknown(), "/v1/messages-of-others").body))


def test_a_busy_server_says_when_to_come_back() -> None:
    assert error_response(errors.ServerBusy("x", 7), "/completion").headers["retry-after"] == "7"


def test_every_refusal_and_request_error_has_a_row() -> None:
    for module, root in ((scheduler_errors, Refusal), (errors, RequestError)):
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, root)]
        leaves = [kind for kind in kinds if not kind.__subclasses__()]
        assert leaves
        assert all(issubclass(kind, KNOWN) for kind in leaves), leaves


def test_a_prompt_that_is_too_long_tells_both_numbers() -> None:
    body = error_body(PromptTooLong(9, 8))["error"]
    assert list(body) == ["code", "message", "type", "n_prompt_tokens", "n_ctx"]  # type: ignore[call-overload]
    assert (body["n_prompt_tokens"], body["n_ctx"]) == (9, 8)  # type: ignore[index]


def test_an_unforeseen_error_keeps_its_message_to_itself() -> None:
    body = error_body(RuntimeError("/secret/path"))["error"]
    assert "secret" not in str(body)
    assert body["code"] == 500  # type: ignore[index]
