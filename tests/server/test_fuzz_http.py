"""Random requests to the fake model: no 5xx, no answer that does not come, every refusal in the form of errors. Beside
them the requests that once were answered otherwise.
"""

import httpx
import pytest

from server.schemas import MAX_VALUES
from tests.server.fuzz_http import fuzz
from tests.server.live import LiveServer


@pytest.mark.slow
def test_random_requests_are_answered_as_the_document_says(server: LiveServer) -> None:
    assert fuzz(server.url, seconds=60) == 0
    assert server.is_idle


@pytest.mark.parametrize(
    ("path", "body", "field"), [("/completion", {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, "logit_bias[0]")]
)
def test_what_once_failed_is_refused(client: httpx.Client, path: str, body: dict[str, object], field: str) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"Field '{field}'")


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("field", ["tools", "prompt", "lora", "messages", "logit_bias"])
def test_deep_bodies_are_refused(client: httpx.Client, path: str, field: str) -> None:
    for depth in (100, 500, *range(920, 1000, 7), 100_000):
        response = client.post(path, content=f'{{"{field}": {"[" * depth}{"]" * depth}}}')
        assert response.status_code == 400
        assert "nested deeper than 100" in response.text or "not valid JSON" in response.text


def test_a_body_of_a_hundred_levels_is_read(client: httpx.Client) -> None:
    nested = f'{{"prompt": "a", "n_predict": 1, "user": {"[" * 99}{"]" * 99}}}'
    assert client.post("/completion", content=nested).status_code == 200


@pytest.mark.parametrize("filling", [b"1,", b'{"b":1},', b"[],", b'",",'])
def test_more_values_than_can_be_parsed_in_passing_are_refused(client: httpx.Client, filling: bytes) -> None:
    content = b'{"prompt": "a", "nobody_knows": [' + filling * MAX_VALUES + b"1]}"
    response = client.post("/completion", content=content)
    assert response.status_code == 400
    message = f"Request body has more than {MAX_VALUES} brackets, braces and commas"
    assert response.json()["error"]["message"] == message


def test_as_many_values_as_can_be_parsed_are_read(client: httpx.Client) -> None:
    rest = b'{"prompt": "a", "n_predict": 1, "nobody_knows": ['  # two commas, a brace and a bracket
    content = rest + b"1," * (MAX_VALUES - 4) + b"1]}"
    assert client.post("/completion", content=content).status_code == 200
    assert client.post("/completion", content=content.replace(b"1]", b"1,1]")).status_code == 400
