"""Fields of features that are not there: refused by name and value, accepted where they ask for nothing."""

import httpx
import pytest

from server.errors import FieldInvalid
from server.unsupported import refuse_unsupported
from tests.server.fakes import BODIES

REFUSED: list[tuple[str, object]] = [
    ("typical_p", 0.9),
    ("top_n_sigma", 1),
    ("dynatemp_range", 0.5),
    ("xtc_probability", 0.1),
    ("dry_multiplier", 0.8),
    ("mirostat", 1),
    ("mirostat", False),
    ("post_sampling_probs", True),
    ("samplers", ["top_k"]),
    ("samplers", "kp"),
    ("grammar", "root ::= x"),
    ("json_schema", {}),
    ("response_format", {"type": "json_object"}),
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("suffix", "x"),
    ("echo", True),
    ("n_indent", 2),
    ("return_progress", True),
    ("n_keep", -1),
    ("min_tokens", 5),
    ("stop_token_ids", [1]),
    ("reasoning_format", "deepseek"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_feature_that_is_not_there_is_named(field: str, value: object) -> None:
    with pytest.raises(FieldInvalid, match=f"^Field '{field}'"):
        refuse_unsupported({field: value})


@pytest.mark.parametrize("path", BODIES)
def test_every_route_refuses(client: httpx.Client, path: str) -> None:
    response = client.post(path, json=BODIES[path] | {"mirostat": 2})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == ("Field 'mirostat': is not supported; only 0 is accepted, but got 2")


@pytest.mark.parametrize(
    "body",
    [
        {"typical_p": 1.0, "top_n_sigma": -1, "dynatemp_range": 0.0, "xtc_probability": 0, "dry_multiplier": 0},
        {"mirostat": 0, "mirostat_tau": 7, "dry_base": 3, "xtc_threshold": 0.5, "dynatemp_exponent": 2},
        {"grammar": "", "response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "suffix": ""},
        {"echo": False, "n_keep": 0, "reasoning_format": "auto"},
        {"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
        {"min_tokens": 0},
        {"min_tokens": 5, "ignore_eos": True},
        {"mirostat": None, "tools": None, "json_schema": None, "min_tokens": None},
        {"unheard_of": 5},
    ],
)
def test_what_asks_for_nothing_is_accepted(body: dict[str, object]) -> None:
    refuse_unsupported(body)
