"""How answers are compared."""

from tests.differential.pair import Json
from tests.differential.shape import Difference, differences


def found(ours: Json, peers: Json) -> set[tuple[str, str]]:
    return {(one.kind, one.path) for one in differences(ours, peers)}


def test_equal_forms_do_not_differ_whatever_the_values() -> None:
    assert not found({"id": "a", "n": 1, "list": [0.5]}, {"id": "b", "n": 2.5, "list": [7]})


def test_missing_and_added_fields_are_told_by_their_path() -> None:
    assert found({"a": {"x": 1}}, {"a": {"y": 1}}) == {("missing", "a.y"), ("added", "a.x")}


def test_the_order_of_common_fields_counts() -> None:
    assert found({"a": 1, "b": 2, "c": 3}, {"b": 2, "a": 1}) == {("order", ""), ("added", "c")}


def test_types_count_and_booleans_are_no_numbers() -> None:
    assert found({"a": True, "b": None}, {"a": 1, "b": ""}) == {("type", "a"), ("type", "b")}


def test_elements_are_compared_pair_by_pair_and_lengths_too() -> None:
    assert found([{"a": 1}, {}], [{"a": ""}]) == {("length", ""), ("type", "*.a")}


def test_values_count_where_they_mean_the_same_on_both() -> None:
    assert found({"finish_reason": "stop", "id": 1}, {"finish_reason": "length", "id": 2}) == {
        ("value", "finish_reason")
    }
    assert list(differences({"tokens": [1]}, {"tokens": [2]})) == [Difference("tokens.*", "value", "1 for 2")]
