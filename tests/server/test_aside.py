"""Where work on what a client sent is done."""

import asyncio
import threading

import pytest

from server.aside import in_proportion, is_large


@pytest.mark.parametrize(
    "value", [[1] * 300, {str(i): i for i in range(300)}, [[[{"a": [["x"] * 300]}]]], "x" * 300_000, ["x" * 2000] * 150]
)
def test_large_values_are_worked_on_beside_the_event_loop(value: object) -> None:
    assert is_large(value)
    assert is_large(None, "a", value)
    assert asyncio.run(in_proportion(threading.get_ident, value)) != threading.get_ident()


@pytest.mark.parametrize("value", [None, 1, True, "x" * 1000, [1, 2, 3], {"a": [{"b": "c"}] * 20}])
def test_others_are_worked_on_at_once(value: object) -> None:
    assert not is_large(value)
    assert asyncio.run(in_proportion(threading.get_ident, value)) == threading.get_ident()
