"""Random constraints: each is kept to or refused, in time, and a refusal names the field. Nothing fails, and the server
serves on."""

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.constrained import SamplingExecutor
from tests.server.constraint_texts import damaged, grammars, regexes, schemas
from tests.server.fakes import fake_engine
from tests.server.live import LiveServer

schema_texts = schemas.map(json.dumps)
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "grammar": st.one_of(grammars, damaged(grammars)),
    "guided_regex": st.one_of(regexes, damaged(regexes)),
    "json_schema": schemas,
    "guided_json": st.one_of(schema_texts, damaged(schema_texts)),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a random model."""
    with LiveServer(lambda settings: fake_engine(SamplingExecutor())) as server, server.client() as opened:
        yield opened
        assert server.is_idle


def try_constraints(client: httpx.Client, field: str, num_examples: int) -> None:
    @settings(
        deadline=None,
        max_examples=num_examples,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(value=FIELDS[field])
    def check(value: object) -> None:
        response = client.post("/completion", json={"prompt": "a", "n_predict": 4, "seed": 1, field: value})
        if response.status_code != 200:
            message = response.json()["error"]["message"]
            assert response.status_code == 400, message
            assert message.startswith((f"Field '{field}", "the constraint ")), message

    check()


@pytest.mark.parametrize("field", FIELDS)
def test_any_constraint_is_kept_to_or_refused_by_name(client: httpx.Client, field: str) -> None:
    try_constraints(client, field, num_examples=30)


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_many_constraints_are_kept_to_or_refused_by_name(client: httpx.Client, field: str) -> None:
    try_constraints(client, field, num_examples=1000)
