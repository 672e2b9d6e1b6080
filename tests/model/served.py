"""Requests served by the real scheduler and a real model, without a loop and without time."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from model.kv_cache import KVCache
from model.language_model import LanguageModel
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from scheduler.batch import Sample
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Event, TokenSampled
from scheduler.request import Request


def serve(model: LanguageModel, stacks: LoraCache, requests: Iterable[Request], limits: SchedulerLimits) -> list[Event]:
    """Serve the requests, which come two by two, and return all that happened."""
    runner = ModelRunner(model, KVCache(model.config, limits.num_blocks, model.backend), stacks)
    scheduler, waiting, now = Scheduler(limits), list(requests), 0.0
    while waiting or scheduler.num_requests:
        for arriving in waiting[:2]:
            scheduler.add(arriving, now)
        del waiting[:2]
        batch = scheduler.plan(now)
        assert batch is not None
        scheduler.commit(runner.execute(batch), now)
        now += 0.01
    return scheduler.take_events()


def samples_of(events: Sequence[Event]) -> dict[int, list[Sample]]:
    """Return what was sampled for each request."""
    samples = defaultdict(list)
    for event in events:
        if isinstance(event, TokenSampled):
            samples[event.request_id].append(event.sample)
    return dict(samples)
