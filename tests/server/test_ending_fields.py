"""Fields that say where an answer ends and what it shows of its end, over HTTP: the same on every route that takes
them."""

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scheduler.batch import Row, RowFault, Sample
from scheduler.cohort import CohortKey
from tests.server.fakes import BODIES, EOS, TURN, FakeExecutor, fake_engine
from tests.server.live import LiveServer

SAID = (ord("a"), TURN, ord("b"), ord("\n"), ord("c"), EOS, ord("d"), ord("e"), EOS)


class Obedient(FakeExecutor):
    """Says what is forbidden to nobody: z where it would."""

    def sample(self, key: CohortKey, row: Row) -> Sample | RowFault:
        """Return the foreseen token where it is allowed."""
        assert row.sampling is not None
        sample = super().sample(key, row)
        assert isinstance(sample, Sample)
        is_forbidden = (sample.token_id, -math.inf) in row.sampling.logit_bias
        return Sample(row.request_id, ord("z")) if is_forbidden else sample


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    executor = Obedient(lambda key, index: SAID[min(index, len(SAID) - 1)])
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as opened:
        yield opened


def answer(client: httpx.Client, path: str, **fields: object) -> tuple[str, str]:
    """The text of an answer and why it ended."""
    response = client.post(path, json=BODIES[path] | {"max_tokens": 9} | fields)
    assert response.status_code == 200, response.text
    body = response.json()
    if "content" in body:
        return body["content"], "length" if body["stop_type"] == "limit" else "stop"
    [choice] = body["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


CASES: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({}, ("ab\nc", "stop")),
    ({"stop": "b"}, ("a", "stop")),
    ({"stop": "b", "include_stop_str_in_output": True}, ("ab", "stop")),
    ({"stop_token_ids": [98]}, ("a", "stop")),
    ({"stop_token_ids": [98, 100], "include_stop_str_in_output": True}, ("ab", "stop")),
    ({"stop_token_ids": [100], "ignore_eos": True}, ("ab\ncz", "stop")),
    ({"skip_special_tokens": False}, ("a<|turn|>b\nc", "stop")),
    ({"n_indent": 1}, ("ab\n", "length")),
    ({"min_tokens": 6}, ("ab\nczde", "stop")),
    ({"min_tokens": 9}, ("ab\nczdez", "length")),
    ({"min_tokens": 6, "stop": ["b", "e"]}, ("ab\nczd", "stop")),
    ({"min_tokens": 7, "stop_token_ids": [98]}, ("az\nczde", "stop")),
    ({"min_tokens": 9, "ignore_eos": True, "stop": "b"}, ("ab\nczdez", "length")),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_a_field_is_honoured(
    client: httpx.Client, path: str, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert answer(client, path, **fields) == expected


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_tokens": 10}, "Field 'min_tokens': must be at most n_predict, which is 9, but got 10"),
        ({"min_tokens": -1}, "Field 'min_tokens': Value must be between 0 <= value <= 2147483647, but got -1"),
        ({"stop_token_ids": ["a"]}, "Field 'stop_token_ids[0]': must be a token id, but is string"),
        ({"stop_token_ids": [1, 259]}, "Field 'stop_token_ids[1]': must be a token id, 0 to 258, but got 259"),
        ({"stop_token_ids": 5}, "Field 'stop_token_ids': type must be array, but is number"),
        ({"n_indent": -1}, "Field 'n_indent': Value must be between 0 <= value <= 2147483647, but got -1"),
        ({"skip_special_tokens": 0}, "Field 'skip_special_tokens': type must be boolean, but is number"),
    ],
)
def test_a_wrong_value_is_named(client: httpx.Client, path: str, fields: dict[str, Any], message: str) -> None:
    response = client.post(path, json=BODIES[path] | {"max_tokens": 9} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


def test_min_tokens_with_no_other_token_left_is_refused(client: httpx.Client) -> None:
    bias = [[token_id, False] for token_id in range(EOS)] + [[TURN, False]]
    response = client.post("/completion", json={"prompt": "a", "logit_bias": bias, "min_tokens": 1})
    assert response.status_code == 400
    message = "Field 'min_tokens': leaves no token: all others are forbidden by logit_bias"
    assert response.json()["error"]["message"] == message
