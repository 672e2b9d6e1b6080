"""What a list is on one matrix product, against formulas in float64."""

from dataclasses import replace

import torch
from torch import Tensor

from model.adapters.adapter import Adapter, Dora, LoraDelta
from model.lora_sum import DeltaSum, sum_of_deltas
from scheduler.cohort import AdapterId

PARTS = (("q", 5), ("k", 3))
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def adapter(deltas: dict[str, LoraDelta], biases: dict[str, Tensor] | None = None) -> Adapter:
    return Adapter(AdapterId(0, ""), "", "", "peft", deltas, 1.0, "", "", biases=biases or {})


def delta(out: int, rank: int = 2) -> LoraDelta:
    return LoraDelta(random(rank, 4), random(out, rank), factor=0.5)


def sum_of(*scaled: tuple[Adapter, float]) -> DeltaSum:
    total = sum_of_deltas(scaled, 4, PARTS)
    assert total is not None
    return total


def test_nothing_is_the_sum_of_nothing() -> None:
    assert sum_of_deltas([(adapter({"o": delta(5)}, {"up": random(3)}), 1.0)], 4, PARTS) is None


def test_plain_deltas_need_no_gain_and_no_offset() -> None:
    first, second = adapter({"k": delta(3), "q": delta(5)}), adapter({"q": delta(5, rank=3)})
    total = sum_of((first, 2.0), (second, -1.0))
    assert (total.gain, total.offset) == (None, None)
    assert torch.equal(total.a, torch.cat([first.deltas["q"].a, first.deltas["k"].a, second.deltas["q"].a]))
    want = torch.zeros(8, 7)
    want[:5, :2], want[5:, 2:4], want[:5, 4:] = (
        first.deltas["q"].b, first.deltas["k"].b, -0.5 * second.deltas["q"].b
    )  # fmt: skip
    assert torch.equal(total.b, want)


def test_biases_alone_have_rank_zero() -> None:
    total = sum_of((adapter({}, {"k": torch.ones(3)}), 0.5), (adapter({}, {"k": torch.ones(3)}), 0.25))
    assert (total.a.shape, total.b.shape, total.gain) == ((0, 4), (8, 0), None)
    assert total.offset is not None
    assert total.offset.tolist() == [0, 0, 0, 0, 0, 0.75, 0.75, 0.75]


def test_the_gains_of_two_doras_act_on_the_base_model_alone() -> None:
    weight, own_bias, x = random(5, 4).double(), random(5), random(4).double()
    scaled = []
    want = weight @ x + own_bias
    for scale in (0.5, -1.5):
        plain = delta(5)
        product = plain.b.double() @ plain.a.double()
        dora = Dora(
            random(5).abs(), weight.square().sum(1), 2 * (weight * product).sum(1), product.square().sum(1), own_bias
        )
        scaled.append((adapter({"q": replace(plain, bias=random(5), dora=dora)}), scale))
        strength = scale * plain.factor
        gain = dora.magnitude / (weight + strength * product).norm(dim=1)
        bias = scaled[-1][0].deltas["q"].bias
        assert bias is not None
        want += (gain - 1) * (weight @ x) + gain * strength * (product @ x + bias)
    total = sum_of(*scaled)
    assert total.gain is not None
    assert total.offset is not None
    y = torch.cat((weight @ x + own_bias, torch.arange(3.0).double()))
    got = y * total.gain + total.offset + total.b.double() @ (total.a.double() @ x)
    torch.testing.assert_close(got, torch.cat((want, torch.arange(3.0).double())), rtol=1e-5, atol=1e-5)
