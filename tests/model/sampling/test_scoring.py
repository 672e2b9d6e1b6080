"""The log-probabilities of prompts against transformers', and their bits however prompts are cut and in any company."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from model.runner import ModelRunner
from model.sampling.scoring import MAX_LOGIT_ROWS, joined, parts_of, tokens_with_logits
from scheduler.batch import Batch, Row, RowFault, RowLate, Sample, SamplingParams, Scores, Scoring
from tests.model.test_pooling import on_cpu, runner_of
from tests.model.tiny import make_model, write_gguf

PROMPT = tuple(7 * i % 250 + 3 for i in range(MAX_LOGIT_ROWS + 50))
TABLE = (3, 1, 2, 9, 10, 11, 12, 13)
GREEDY = SamplingParams(temperature=0.0, num_logprobs=2)
NUM_TOP = 3


def row_of(start: int, stop: int, request_id: int = 0) -> Row:
    """A chunk of PROMPT, which is scored, and sampled from at its end."""
    following = PROMPT[start + 1 : stop + 1]
    return Row(
        request_id,
        PROMPT[start:stop],
        start,
        TABLE,
        GREEDY if stop == len(PROMPT) else None,
        scoring=Scoring(following, NUM_TOP) if following else None,
    )


def scores_of(
    runner: ModelRunner, chunks: Sequence[int], neighbours: Sequence[Row] = ()
) -> tuple[list[Sample], Sample | RowFault | RowLate]:
    """Compute PROMPT in chunks; return its scores, and what is sampled after it."""
    start = 0
    scored: list[Sample] = []
    for count in chunks:
        rows = (*neighbours[:1], row_of(start, start + count), *neighbours[1:])
        output = runner.execute(Batch(0, (), rows))
        for each in output.scores:
            if each.request_id == 0:
                assert each.start == start
                scored += each.tokens
        start += count
    [last] = [sample for sample in output.samples if sample.request_id == 0]
    return scored, last


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    path = tmp_path_factory.mktemp("llama")
    return path, make_model("llama", path)


def test_scores_are_the_log_probabilities_of_transformers(llama: tuple[Path, PreTrainedModel]) -> None:
    path, oracle = llama
    scored, sample = scores_of(runner_of(on_cpu(path, "float32")), (30, 80, 4))
    with torch.no_grad():
        logprobs = oracle(torch.tensor([PROMPT])).logits[0].log_softmax(-1)  # (T, V)
    assert [each.token_id for each in scored] == list(PROMPT[1:])
    for each, wanted in zip(scored, logprobs[:-1], strict=True):
        assert each.logprob == pytest.approx(wanted[each.token_id].item(), abs=1e-4)
        values = wanted.topk(NUM_TOP).values.tolist()
        assert [top.logprob for top in each.top_logprobs] == pytest.approx(values, abs=1e-4)
        assert [wanted[top.token_id].item() for top in each.top_logprobs] == pytest.approx(values, abs=1e-4)
    assert isinstance(sample, Sample)
    assert sample.token_id == logprobs[-1].argmax().item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_scores_have_the_same_bits_in_any_company_and_cut(dtype: str, tmp_path: Path) -> None:
    oracle = make_model("llama", tmp_path / "hf")
    write_gguf(oracle, tmp_path / "model.gguf", "Q4_1" if dtype == "int8" else "F32")
    try:
        runner = runner_of(on_cpu(tmp_path / "model.gguf", dtype))
    except ValueError as error:
        pytest.skip(str(error))
    alone = scores_of(runner, (len(PROMPT),))
    neighbours = (
        Row(1, (7,), 20, (4, 5), GREEDY, is_decode=True),
        Row(2, (8, 9, 10), 0, (6,), None, scoring=Scoring((9, 10), 1)),
        Row(3, (8, 9), 0, (7,), GREEDY),
    )
    assert scores_of(runner, (1, 15, 17, len(PROMPT) - 34, 1)) == alone
    assert scores_of(runner, (70, len(PROMPT) - 70), neighbours) == alone
    mixed = runner.execute(Batch(0, (), (*neighbours, row_of(0, len(PROMPT)))))
    assert mixed.samples[:2] == runner.execute(Batch(0, (), neighbours)).samples
    assert [scores.request_id for scores in mixed.scores] == [2, 0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_a_step_is_cut_into_parts_that_ask_for_the_same(wanted: list[tuple[int, bool, bool]]) -> None:
    rows = tuple(
        Row(
            number,
            tuple(range(count)),
            5,
            (0,) * 20,
            GREEDY if samples else None,
            scoring=Scoring(tuple(range(count - samples)), 1) if scores and count > samples else None,
        )
        for number, (count, samples, scores) in enumerate(wanted)
    )
    parts = parts_of(rows)
    for part in parts:
        assert sum(len(row.scoring.token_ids) for row in part if row.scoring) <= MAX_LOGIT_ROWS
        assert [row.request_id for row in part] == sorted({row.request_id for row in part})
    for row in rows:
        pieces = [piece for part in parts for piece in part if piece.request_id == row.request_id]
        assert sum((piece.token_ids for piece in pieces), ()) == row.token_ids
        assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
        assert (pieces[0].start, pieces[-1].end) == (row.start, row.end)
        assert [piece.sampling for piece in pieces] == [None] * (len(pieces) - 1) + [row.sampling]
        following = sum((piece.scoring.token_ids for piece in pieces if piece.scoring), ())
        assert following == (row.scoring.token_ids if row.scoring else ())
        assert all(len(set(tokens_with_logits(piece))) == len(tokens_with_logits(piece)) for piece in pieces)


def test_the_scores_of_parts_are_those_of_their_rows() -> None:
    first, second, other = (Sample(1, 5, -1.0),), (Sample(1, 6, -2.0),), (Sample(2, 7, -3.0),)
    got = joined([Scores(1, 4, first), Scores(2, 0, other), Scores(1, 5, second)])
    assert got == (Scores(1, 4, first + second), Scores(2, 0, other))
