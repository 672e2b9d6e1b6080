"""Fields of features that are not there: refused by name and value, accepted where they ask for nothing."""

import httpx
import pytest

from server.errors import FieldInvalid
from server.unsupported import refuse_unsupported
from tests.server.fakes import BODIES

REFUSED: list[tuple[str, object]] = [
    ("backend_sampling", True),
    ("backend_sampling", 0),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("t_max_prompt_ms", 500),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_feature_that_is_not_there_is_named(field: str, value: object) -> None:
    with pytest.raises(FieldInvalid, match=f"^Field '{field}'"):
        refuse_unsupported({field: value})


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("tools", [{"type": "function"}]), ("tool_choice", "required"), ("reasoning_format", "deepseek")],
)
def test_what_belongs_to_chats_is_refused_without_messages(
    client: httpx.Client, path: str, field: str, value: object
) -> None:
    response = client.post(path, json=BODIES[path] | {field: value})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"Field '{field}'")


@pytest.mark.parametrize("path", BODIES)
def test_every_route_refuses(client: httpx.Client, path: str) -> None:
    response = client.post(path, json=BODIES[path] | {"backend_sampling": True})
    assert response.status_code == 400
    message = "Field 'backend_sampling': is not supported; only false is accepted, but got true"
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [], "tool_choice": "auto"},
        {"reasoning_format": "auto"},
        {"backend_sampling": False},
        {"backend_sampling": None, "tools": None},
        {"t_max_prompt_ms": -1},
        {"unheard_of": 5},
    ],
)
def test_what_asks_for_nothing_is_accepted(body: dict[str, object]) -> None:
    refuse_unsupported(body)
