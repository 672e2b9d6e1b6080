"""The composition root: settings to Engine. The one place that knows every part, and the only one that reads model
files.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from model.adapter import BaseWeights
from model.adapters import Adapter, load_adapter
from model.backend import choose_backend
from model.chat_template import ChatTemplate
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from model.tokenizer import Tokenizer, load_tokenizer
from model.weights import Checkpoint, load_checkpoint
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Event
from scheduler.fairness import FairnessSettings
from scheduler.loop import Executor, StepLoop
from scheduler.policy import Policy, make_policy
from server.adapter_registry import AdapterCard, AdapterRegistry
from server.adapter_weights import BASE_NAME, weigh_lists
from server.capacity import free_memory_bytes, num_physical_cores, plan_limits
from server.departures import Departures
from server.engine import Engine, ModelCard
from server.metrics import Metrics
from server.settings import Settings


def load_engine(settings: Settings) -> Engine:
    """Load model and adapters and build everything around them. Raises ValueError or OSError, naming what is wrong
    with the files.
    """
    torch.set_num_threads(settings.threads or num_physical_cores())
    backend = choose_backend(settings.device, settings.dtype)
    checkpoint = load_checkpoint(settings.model)
    tokenizer = load_tokenizer(checkpoint)
    chat_template = choose_chat_template(settings, tokenizer)
    config = checkpoint.config
    decoder = Decoder(config, checkpoint.tensors, backend)
    names = adapter_names([argument.path for argument in settings.adapters], taken=[*model_names(settings), BASE_NAME])
    base = BaseWeights(config, decoder.module_shapes, checkpoint.tensors)
    adapters = [
        load_adapter(Path(argument.path), load_id, name, base)
        for load_id, (argument, name) in enumerate(zip(settings.adapters, names, strict=True))
    ]
    block_bytes = KVCache.bytes_per_block(config, backend.dtype)
    free_bytes = torch.cuda.mem_get_info()[0] if backend.device.type == "cuda" else free_memory_bytes()
    limits = plan_limits(settings, config.max_position, block_bytes, free_bytes)
    runner = ModelRunner(
        decoder,
        KVCache(config, limits.num_blocks, backend),
        LoraCache(adapters, decoder.adaptable, backend, settings.lora_cache_bytes),
    )
    runner.warm_up()
    card = model_card(settings, checkpoint, limits)
    cards = [_card(adapter, tokenizer) for adapter in adapters]
    return assemble(settings, card, tokenizer, chat_template, cards, limits, runner)


def assemble(
    settings: Settings,
    card: ModelCard,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    adapters: Sequence[AdapterCard],
    limits: SchedulerLimits,
    executor: Executor,
) -> Engine:
    """Return the engine around an executor; `adapters` are those of `settings`, in their order. Raises ValueError
    where a setting names an adapter that is not among them.
    """
    scales = [0.0 if settings.lora_init_without_apply else argument.scale for argument in settings.adapters]
    registry = AdapterRegistry(adapters, scales)
    scheduler = Scheduler(limits, choose_policy(settings, limits, adapters))
    metrics = Metrics(
        scheduler,
        model_name=card.name,
        adapter_name=registry.name_of,
        loaded_adapters=lambda: [adapter.name for adapter in registry.adapters],
    )
    departures = Departures()

    def observe(event: Event) -> None:
        metrics.observe(event)
        departures.observe(event)

    loop = StepLoop(scheduler, executor, observe=observe)
    return Engine(settings, card, tokenizer, chat_template, registry, loop, metrics, departures)


def choose_policy(settings: Settings, limits: SchedulerLimits, adapters: Sequence[AdapterCard]) -> Policy:
    """Return a new policy as the settings describe it. Raises ValueError where a weight names no adapter."""
    fairness = FairnessSettings(settings.max_wait, settings.fair_slack, settings.max_active_lists)
    weight_of = weigh_lists(settings.adapter_weight, {card.name: card.id for card in adapters})
    return make_policy(settings.policy, limits.num_slots, fairness, weight_of)


def model_names(settings: Settings) -> tuple[str, ...]:
    """Return the model's names in the API: the aliases in alphabetical order, or its path."""
    aliases = sorted(alias.strip() for alias in settings.alias.split(",") if alias.strip())
    return tuple(aliases) or (str(settings.model),)


def adapter_names(paths: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return a unique name for each adapter: the last part of its path, with a number where it is taken. Commas
    separate names elsewhere.
    """
    names: list[str] = []
    for path in paths:
        stem = Path(path).resolve().name.removesuffix(".gguf").replace(",", "_")
        candidates = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        names.append(next(name for name in candidates if name not in names and name not in taken))
    return names


def choose_chat_template(settings: Settings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the template that the settings give, else the model's own. Raises OSError or TemplateError."""
    source = settings.chat_template
    if settings.chat_template_file is not None:
        source = settings.chat_template_file.read_text(encoding="utf-8")
    if not source:
        return tokenizer.chat_template
    return ChatTemplate(source, special_tokens={"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text})


def model_card(settings: Settings, checkpoint: Checkpoint, limits: SchedulerLimits) -> ModelCard:
    """Return what the server says about the model of `checkpoint`."""
    config = checkpoint.config
    return ModelCard(
        names=model_names(settings),
        path=str(settings.model),
        family=config.family,
        format=checkpoint.format,
        file_type=checkpoint.file_type,
        n_ctx=limits.max_context,
        n_ctx_train=config.max_position,
        n_vocab=config.vocab_size,
        n_embd=config.hidden_size,
        n_params=checkpoint.num_parameters,
        num_bytes=checkpoint.num_bytes,
    )


def _card(adapter: Adapter, tokenizer: Tokenizer) -> AdapterCard:
    return AdapterCard(
        id=adapter.id,
        name=adapter.name,
        path=adapter.path,
        task_name=adapter.task_name,
        prompt_prefix=adapter.prompt_prefix,
        invocation_tokens=adapter.invocation_tokens,
        invocation_text=tokenizer.decode(adapter.invocation_tokens),
    )
