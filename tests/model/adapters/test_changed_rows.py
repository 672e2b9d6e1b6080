"""Rows that an adapter changes, by hand-computed values."""

import torch

from model.adapters.changed_rows import ChangedRows

BASE = torch.arange(12, dtype=torch.float32).reshape(4, 3)  # V = 4, D = 3


def test_only_rows_that_differ_are_kept_and_added_ones() -> None:
    rows = ChangedRows(4, 3)
    whole = torch.cat([BASE, torch.full((2, 3), 7.0)])
    whole[2, 1] += 0.5
    rows.replace_all(whole, BASE)
    finished = rows.finish()
    assert finished is not None
    assert finished.ids.tolist() == [2, 4, 5]
    assert finished.rows.tolist() == [[0, 0.5, 0], [7, 7, 7], [7, 7, 7]]
    assert rows.end == 6


def test_a_matrix_like_the_base_models_changes_nothing() -> None:
    rows = ChangedRows(4, 3)
    rows.replace_all(BASE.clone(), BASE)
    assert rows.finish() is None
    assert rows.end == 4


def test_rounding_to_the_coarser_type_is_no_change() -> None:
    base = BASE + 0.123456
    for whole, own in ((base.bfloat16(), base), (base, base.bfloat16()), (base.half(), base.bfloat16())):
        rows = ChangedRows(4, 3)
        rows.replace_all(whole, own)
        assert rows.finish() is None
    trained = base.bfloat16()
    trained[1] *= 1.01
    rows = ChangedRows(4, 3)
    rows.replace_all(trained, base)
    finished = rows.finish()
    assert finished is not None
    assert finished.ids.tolist() == [1]


def test_single_rows_take_the_place_of_what_was_there() -> None:
    rows = ChangedRows(4, 3)
    whole = torch.cat([BASE, torch.ones(1, 3)])
    whole[0] = 9
    rows.replace_all(whole, BASE)
    given = torch.tensor([[5.0, 5, 5], [1, 1, 1], [2, 2, 2]])
    rows.replace(torch.tensor([4, 0, 3]), given, BASE)
    finished = rows.finish()
    assert finished is not None
    assert finished.ids.tolist() == [0, 3, 4]
    assert finished.rows.tolist() == [[1, 0, -1], [-7, -8, -9], [5, 5, 5]]
    assert given.tolist() == [[5, 5, 5], [1, 1, 1], [2, 2, 2]]  # they may be another's, too


def test_low_rank_deltas_of_added_tokens_are_part_of_their_rows() -> None:
    rows = ChangedRows(4, 3)
    rows.replace_all(torch.cat([BASE, torch.ones(2, 3)]), BASE)
    a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [0.0], [-1.0]])
    rows.add_low_rank(a, b, 0.5)
    finished = rows.finish()
    assert finished is not None
    assert finished.rows.tolist() == [[1.5, 1, 0.5], [2, 1, 0]]


def test_the_first_added_token_without_a_row_is_found() -> None:
    rows = ChangedRows(4, 3)
    assert rows.first_missing(4) is None
    assert rows.first_missing(5) == 4
    rows.replace(torch.tensor([4, 6]), torch.ones(2, 3), BASE)
    assert rows.end == 7
    assert rows.first_missing(7) == 5
    assert rows.first_missing(5) is None
