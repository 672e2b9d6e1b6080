"""The real scheduler and the demo model on the path that is its default: everybody's tokens and log-probabilities are,
to the last bit, what they would be alone, whatever the batches, chunks, prefix hits and preemptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from model.adapters.adapter import Adapter, BaseWeights
from model.adapters.files import load_adapter
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.language_model import LanguageModel, load_language_model
from model.lora_cache import LoraCache
from scheduler.batch import BLOCK_SIZE, DEFAULT_SAMPLERS, Sample, Sampler, SamplerChain, SamplingParams
from scheduler.cohort import BASE, CohortKey, cohort_key
from scheduler.core import SchedulerLimits
from scheduler.events import Event, Finished, Preempted
from scheduler.request import Request
from tests.model.served import samples_of, serve

DEMO = Path(__file__).parents[2] / "docs" / "demo"
NUM_NEW = 8
SYSTEM = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 28, 284, 732, 314, 357, 1343, 327, 47, 2, 198]
"""More than a block: what prompts begin with that share a prefix."""
CHAINS = {
    3: SamplerChain(mirostat=2),
    5: SamplerChain((*DEFAULT_SAMPLERS, Sampler.ADAPTIVE_P), adaptive_target=0.3, dry_multiplier=1.0),
}
"""Of some requests: samplers that remember, and such that look far back."""


@dataclass(frozen=True)
class Demo:
    """The demo model with its two adapters."""

    model: LanguageModel
    adapters: Sequence[Adapter]
    stacks: LoraCache

    def lists(self) -> tuple[CohortKey, CohortKey, CohortKey]:
        pirate, emoji = (adapter.id for adapter in self.adapters)
        return BASE, cohort_key([(pirate, 1.0)]), cohort_key([(pirate, 0.5), (emoji, 0.75)])


@pytest.fixture(scope="module")
def demo(smollm2_path: Path) -> Demo:
    checkpoint = load_checkpoint(smollm2_path)
    backend = choose_backend("cpu", "auto", checkpoint)
    model = load_language_model(checkpoint.config, checkpoint.tensors, backend)
    base = BaseWeights(checkpoint.config, model.module_shapes, checkpoint.tensors)
    names = ("pirate", "emoji")
    adapters = [load_adapter(DEMO / name, load_id, name, base) for load_id, name in enumerate(names)]
    return Demo(model, adapters, LoraCache(adapters, model.adaptable, backend, max_bytes=2**28))


def request(number: int, key: CohortKey, *, is_alone: bool = False) -> Request:
    """Request `number`: some share the beginning of their prompt, some are greedy, all differ."""
    body = [(31 * number + 7 * i) % 49000 + 20 for i in range(1 + (11 * number) % 60)]
    return Request(
        request_id=number,
        key=key,
        prompt=tuple(SYSTEM * (number % 3) + body),
        sampling=SamplingParams(
            temperature=0.8 * (number % 2), seed=number, num_logprobs=3, chain=CHAINS.get(number % 6)
        ),
        max_new_tokens=NUM_NEW,
        eog_ids=frozenset(),
        slot_id_wanted=None,
        reuse_prefix=not is_alone,
        activations=(),
    )


def run(demo: Demo, requests: Sequence[Request], limits: SchedulerLimits) -> list[Event]:
    return serve(demo.model, demo.stacks, requests, limits)


def limits(num_slots: int, num_blocks: int, max_step_tokens: int) -> SchedulerLimits:
    return SchedulerLimits(num_slots, num_blocks, 12 * BLOCK_SIZE, max_step_tokens, max_waiting=64)


def alone(demo: Demo, requests: Sequence[Request]) -> dict[int, list[Sample]]:
    samples: dict[int, list[Sample]] = {}
    for each in requests:
        samples |= samples_of(run(demo, [request(each.request_id, each.key, is_alone=True)], limits(1, 12, 192)))
    return samples


@pytest.mark.parametrize("index", range(3), ids=["base", "one adapter", "two adapters"])
def test_tokens_in_any_company_are_those_alone(demo: Demo, index: int) -> None:
    requests = [request(number, demo.lists()[index]) for number in range(36 if index == 0 else 12)]
    wanted = alone(demo, requests)
    for bounds in (limits(32, 400, 256), limits(32, 400, 37), limits(5, 40, 16)):
        events = run(demo, [request(each.request_id, each.key) for each in requests], bounds)
        assert samples_of(events) == wanted
        assert sum(event.num_cached for event in events if isinstance(event, Finished)) > 0


def test_a_preemption_changes_no_token(demo: Demo) -> None:
    requests = [request(number, BASE) for number in range(12)]
    events = run(demo, [request(each.request_id, each.key) for each in requests], limits(8, 14, 64))
    assert any(isinstance(event, Preempted) for event in events)
    assert samples_of(events) == alone(demo, requests)


def test_lists_that_take_turns_change_no_token(demo: Demo) -> None:
    requests = [request(number, demo.lists()[number % 3]) for number in range(15)]
    events = run(demo, [request(each.request_id, each.key) for each in requests], limits(8, 100, 48))
    assert samples_of(events) == alone(demo, requests)
