"""What a step costs, and that the preset `cpu-2-core` agrees with what was measured."""

import pytest

from scheduler.batch import Batch, Row
from scheduler.cohort import BASE
from scheduler.cost_model import CPU_2_CORE, GPU_7B, CostModel

UNITS = CostModel(step_s=1000.0, prefill_token_s=100.0, decode_row_s=10.0, kv_token_s=1.0, tile=4)


def decode_row(context: int) -> Row:
    return Row(context, (1,), context - 1, (), None, is_decode=True)


def chunk(count: int, start: int = 0) -> Row:
    return Row(0, (1,) * count, start, (), None)


def batch(*rows: Row) -> Batch:
    return Batch(0, BASE, rows)


def decode(num_rows: int, context: int) -> Batch:
    return batch(*[decode_row(context)] * num_rows)


def test_a_decode_row_reads_its_context() -> None:
    assert UNITS.duration_s(batch(decode_row(7), decode_row(5))) == 1000 + 2 * 10 + 7 + 5


def test_a_chunk_reads_its_context_once_for_each_tile() -> None:
    # Its 8 tokens read 21 … 28 positions, 196 in all, four tokens at a time.
    assert UNITS.duration_s(batch(chunk(8, start=20))) == 1000 + 8 * 100 + 196 / 4


def test_a_chunk_reads_all_of_its_context_at_least_once() -> None:
    assert UNITS.duration_s(batch(chunk(1, start=20))) == 1000 + 100 + 21


def test_costs_add_up_over_the_rows() -> None:
    assert UNITS.duration_s(batch(decode_row(7), chunk(1))) == 1000 + 10 + 7 + 100 + 1


@pytest.mark.parametrize(
    ("step", "measured_ms"),
    [
        (decode(1, 100), 12.6),
        (decode(2, 100), 11.7),
        (decode(4, 100), 12.1),
        (decode(8, 100), 14.5),
        (decode(16, 100), 18.0),
        (batch(chunk(60)), 26),
        (batch(chunk(256)), 81),
    ],
)
def test_the_cpu_preset_is_within_7_percent_of_the_measurements(step: Batch, measured_ms: float) -> None:
    assert CPU_2_CORE.duration_s(step) == pytest.approx(measured_ms * 1e-3, rel=0.07)


def test_the_cpu_preset_reads_kv_as_fast_as_was_measured() -> None:
    assert CPU_2_CORE.kv_token_s * 16 * 512 == pytest.approx(20e-3, rel=0.15)


def test_the_gpu_preset_agrees_with_the_published_step() -> None:
    assert GPU_7B.duration_s(decode(32, 350)) == pytest.approx(15e-3, rel=0.05)


@pytest.mark.parametrize("costs", [(0.0, 1.0, 1.0, 1.0, 8), (1.0, -1.0, 1.0, 1.0, 8), (1.0, 1.0, 1.0, 1.0, 0)])
def test_time_that_stands_still_or_runs_backwards_is_refused(costs: tuple[float, float, float, float, int]) -> None:
    with pytest.raises(ValueError, match="more than 0 s"):
        CostModel(*costs)
