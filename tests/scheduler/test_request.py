import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.batch import Batch, Row, SamplingParams
from scheduler.cohort import BASE
from scheduler.request import State
from tests.scheduler.builders import GREEDY, make_request

tokens = st.lists(st.integers(0, 9), max_size=8)
positions = st.integers(0, 16)


@given(tokens, tokens, positions, positions)
def test_tokens_are_a_slice_of_prompt_and_output(prompt: list[int], output: list[int], start: int, stop: int) -> None:
    request = make_request(0, tuple(prompt))
    request.output = output
    start, stop = min(start, stop), max(start, stop)
    assert request.tokens(start, stop) == tuple((prompt + output)[start:stop])


def test_num_tokens_counts_prompt_and_output() -> None:
    request = make_request(0, (1, 2, 3))
    request.output = [4, 5]
    assert request.num_tokens == 5


def test_new_request_prefills() -> None:
    request = make_request(0, (1,))
    assert request.num_uncomputed == 1
    assert not request.is_decoding


def test_request_with_one_uncomputed_sampled_token_decodes() -> None:
    request = make_request(0, (1, 2))
    request.output, request.num_computed = [3], 2
    assert request.is_decoding


def test_preempted_request_prefills_again() -> None:
    request = make_request(0, (1, 2))
    request.output, request.num_computed = [3], 0
    assert not request.is_decoding
    assert request.num_uncomputed == 3


@pytest.mark.parametrize(
    ("last_n", "history"),
    [(0, ()), (1, (5,)), (3, (3, 4, 5)), (9, (1, 2, 3, 4, 5)), (-1, (1, 2, 3, 4, 5))],
)
def test_history_is_what_the_penalties_look_at(last_n: int, history: tuple[int, ...]) -> None:
    request = make_request(0, (1, 2, 3), sampling=SamplingParams(repeat_penalty=1.1, repeat_last_n=last_n))
    request.output = [4, 5]
    assert request.history() == history


def test_history_is_empty_without_penalties() -> None:
    assert make_request(0, sampling=SamplingParams(repeat_last_n=64)).history() == ()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(repeat_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(frequency_penalty=-0.1),
    ],
)
def test_each_penalty_asks_for_history(sampling: SamplingParams) -> None:
    assert make_request(0, (1, 2), sampling=sampling).history() == (1, 2)


def test_no_end_is_sampled_before_the_least_number_of_tokens_whatever_was_preempted() -> None:
    sampling = SamplingParams(logit_bias=((7, 1.0),))
    request = replace(make_request(0, (1,), sampling=sampling, eog_ids=frozenset({3, 2})), min_new_tokens=2)
    endless = replace(sampling, logit_bias=((7, 1.0), (2, -math.inf), (3, -math.inf)))
    assert request.prefill_row(1).sampling == endless
    request.output, request.num_computed = [5], 1
    assert request.decode_row().sampling == endless
    request.num_computed = 0
    assert request.prefill_row(1).sampling is None
    assert request.prefill_row(2).sampling == endless
    request.output = [5, 6]
    assert request.prefill_row(3).sampling == sampling


LEGAL_PATHS = [
    (State.RUNNING, State.FINISHED),
    (State.RUNNING, State.WAITING, State.RUNNING, State.FINISHED),
    (State.FINISHED,),
]


@pytest.mark.parametrize("path", LEGAL_PATHS)
def test_legal_states_are_taken(path: tuple[State, ...]) -> None:
    request = make_request(0)
    for state in path:
        request.move_to(state)
        assert request.state is state


@pytest.mark.parametrize(
    "path",
    [
        (State.WAITING,),
        (State.RUNNING, State.RUNNING),
        (State.FINISHED, State.WAITING),
        (State.FINISHED, State.RUNNING),
        (State.FINISHED, State.FINISHED),
    ],
)
def test_illegal_change_of_state_is_caught(path: tuple[State, ...]) -> None:
    request = make_request(7)
    for state in path[:-1]:
        request.move_to(state)
    with pytest.raises(AssertionError, match="request 7: "):
        request.move_to(path[-1])


def test_requests_are_themselves_whatever_they_hold() -> None:
    assert make_request(0) != make_request(0)


def test_row_ends_where_its_sample_will_stand() -> None:
    assert Row(0, token_ids=(5, 6), start=14, block_table=(0,), sampling=None).end == 16


def test_batch_counts_tokens_over_all_rows() -> None:
    rows = (Row(0, (5, 6), 0, (0,), GREEDY), Row(1, (7,), 3, (1,), GREEDY, is_decode=True))
    assert Batch(0, BASE, rows).num_tokens == 3
