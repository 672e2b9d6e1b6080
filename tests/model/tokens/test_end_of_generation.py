"""Which tokens end generation."""

from model.tokens.end_of_generation import end_of_generation_ids


def test_known_texts_and_named_ids_end_generation() -> None:
    added = {"<|im_start|>": 1, "<|im_end|>": 2, "<|eot_id|>": 3, "<|reserved|>": 4}

    assert end_of_generation_ids(added, added.values(), [4, None]) == {2, 3, 4}


def test_known_texts_that_are_added_but_not_special_count_too() -> None:
    assert end_of_generation_ids({"<|end|>": 5}, [], []) == {5}


def test_the_end_of_a_strikethrough_is_no_end_of_generation() -> None:
    assert end_of_generation_ids({"<s>": 6, "</s>": 7}, [], []) == frozenset()
    assert end_of_generation_ids({"<s>": 6, "</s>": 7}, [6, 7], []) == {7}


def test_a_model_without_any_has_none() -> None:
    assert end_of_generation_ids({}, [], [None]) == frozenset()


def test_where_replies_are_made_of_messages_the_end_of_one_is_no_end_of_generation() -> None:
    added = {"<|return|>": 1, "<|call|>": 2, "<|end|>": 3, "<|endoftext|>": 4}
    assert end_of_generation_ids(added, [], [1, 3]) == {1, 2, 4}
    assert end_of_generation_ids({"<|call|>": 2, "<|end|>": 3}, [], []) == {3}
