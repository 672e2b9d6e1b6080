"""Which tokens end generation."""

from model.end_of_generation import end_of_generation_ids


def test_known_texts_and_named_ids_end_generation() -> None:
    added = {"<|im_start|>": 1, "<|im_end|>": 2, "<|eot_id|>": 3, "<|reserved|>": 4}

    assert end_of_generation_ids(added, [4, None]) == {2, 3, 4}


def test_a_model_without_any_has_none() -> None:
    assert end_of_generation_ids({}, [None]) == frozenset()
