"""The composition root: settings to Engine. The one place that knows every part, and the only one that reads model
files.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from model.adapters.adapter import BaseWeights
from model.backend import choose_backend
from model.checkpoint.weights import Checkpoint, load_checkpoint
from model.fingerprint import fingerprint
from model.kv_cache import KVCache
from model.language_model import load_language_model
from model.lora_cache import LoraCache
from model.pooling import stated_pooling
from model.runner import ModelRunner
from model.tokens.chat_template import ChatTemplate
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from scheduler.cohort import AdapterId
from scheduler.core import Scheduler, SchedulerLimits
from scheduler.events import Event, TokenSampled
from scheduler.fairness import FairnessSettings
from scheduler.loop import Executor, StepLoop
from scheduler.policy import Policy, make_policy
from server.adapters.catalog import AdapterCatalog, AdapterEntry
from server.adapters.loader import ModelAdapters
from server.adapters.registry import AdapterRegistry
from server.adapters.residency import Residency
from server.adapters.resident import ModelLists, ResidentAdapter
from server.adapters.weights import check_names, weigh_lists
from server.capacity import free_memory_bytes, num_physical_cores, plan_limits
from server.catalog_opening import can_come_later, model_names, open_catalog
from server.chat.named_templates import template_of
from server.departures import Departures
from server.engine import Engine, ModelCard
from server.metrics.metrics import Metrics
from server.response_cache import ResponseCache
from server.settings import Settings
from server.slots.store import SlotStore


def load_engine(settings: Settings, previous: Engine | None = None) -> Engine:
    """Load a model and its adapters, and build everything around them. Raises ValueError or OSError, naming what is
    wrong with the files.

    With a `previous` engine the new one shares its catalog, and has in memory what the previous one has. Nothing of the
    previous one changes, whatever happens here.
    """
    torch.set_num_threads(settings.threads or num_physical_cores())
    catalog = open_catalog(settings) if previous is None else previous.adapters.catalog.with_base(model_names(settings))
    checkpoint = load_checkpoint(settings.model)
    backend = choose_backend(_device(settings), settings.dtype, checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    chat_template = choose_chat_template(settings, tokenizer)
    config = checkpoint.config
    decoder = load_language_model(config, checkpoint.tensors, backend)
    block_bytes = KVCache.bytes_per_block(config, backend.dtype)
    lora_cache = LoraCache((), decoder.adaptable, backend, settings.lora_cache_bytes)
    adapters = ModelAdapters(
        BaseWeights(config, decoder.module_shapes, checkpoint.tensors), tokenizer, template_source(settings), lora_cache
    )
    residents = {entry: adapters.load_now(entry, next(catalog.load_ids)) for entry in first_adapters(catalog, previous)}
    free_bytes = torch.cuda.mem_get_info()[0] if backend.device.type == "cuda" else free_memory_bytes()
    limits = plan_limits(settings, config.max_position, block_bytes, free_bytes)
    folder = slot_folder(settings)
    origin = {} if folder is None else fingerprint(checkpoint, backend)
    kv = KVCache(config, limits.num_blocks, backend)
    runner = ModelRunner(decoder, kv, lora_cache)
    runner.warm_up()
    card = model_card(settings, checkpoint, limits)
    engine = assemble(
        settings, card, tokenizer, chat_template, limits, runner, catalog, adapters.loader, residents, previous
    )
    engine.constraints.prepare(tokenizer)
    if folder is not None:
        engine.slot_store = SlotStore(folder, origin, kv, block_bytes, engine.loop)
    return engine


def slot_folder(settings: Settings) -> Path | None:
    """Return the folder for saved slots; None where there is none. Raises ValueError where it is no folder."""
    folder = settings.slot_save_path
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--slot-save-path {folder}: not a directory")
    return folder


def first_adapters(catalog: AdapterCatalog, previous: Engine | None) -> list[AdapterEntry]:
    """Return the adapters that a new engine has in memory from its start: those that stay there, and first, and those
    that the previous one has.
    """
    pinned = [entry for entry in catalog.entries if entry.is_pinned]
    if previous is None:
        return pinned
    resident = previous.adapters.residency.resident
    return pinned + [entry for entry in catalog.entries if not entry.is_pinned and resident(entry) is not None]


def assemble(
    settings: Settings,
    card: ModelCard,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate | None,
    limits: SchedulerLimits,
    executor: Executor,
    catalog: AdapterCatalog,
    make_lists: Callable[[StepLoop], ModelLists],
    residents: Mapping[AdapterEntry, ResidentAdapter],
    previous: Engine | None = None,
) -> Engine:
    """Return the engine around an executor, with the adapters `residents` in memory; it goes on with the metrics of a
    `previous` one. Raises ValueError where a setting names an adapter or a token that cannot be, or the adapters that
    stay in memory do not fit in what the settings give them.
    """

    def name_of(adapter: AdapterId) -> str:
        return registry.name_of(adapter)

    def observe(event: Event) -> None:
        metrics.observe(event, name_of)
        meter.observe(event)
        if not isinstance(event, TokenSampled):  # there are many, and of no interest to these
            departures.observe(event)
            registry.observe(event)

    for token_id, _ in settings.logit_bias:
        if token_id >= tokenizer.vocab_size:
            raise ValueError(f"--logit-bias names token {token_id}, the vocabulary has {tokenizer.vocab_size}")
    names = [entry.name for entry in catalog.entries]
    check_names(settings.adapter_weight, names, can_come_later=can_come_later(settings))
    metrics = Metrics() if previous is None else previous.metrics
    meter = metrics.llama_server.meter()
    scheduler = Scheduler(limits, choose_policy(settings, limits, name_of))
    loop = StepLoop(scheduler, executor, observe=observe)
    lists = make_lists(loop)
    residency = Residency(
        lists,
        settings.max_loras,
        settings.lora_memory_bytes,
        load_ids=catalog.load_ids,
        observe=metrics.observe_residency,
    )
    for entry, resident in residents.items():
        residency.adopt(entry, resident)
    registry = AdapterRegistry(catalog, residency, tokenizer, chat_template)
    departures = Departures()
    responses = ResponseCache(settings.response_cache, settings.response_cache_bytes)
    return Engine(settings, card, tokenizer, chat_template, registry, lists, loop, metrics, departures, responses)


def choose_policy(settings: Settings, limits: SchedulerLimits, name_of: Callable[[AdapterId], str]) -> Policy:
    """Return a new policy as the settings describe it. Raises ValueError where they weigh an adapter twice."""
    fairness = FairnessSettings(settings.max_wait, settings.fair_slack, settings.max_active_lists)
    weight_of = weigh_lists(settings.adapter_weight, name_of)
    return make_policy(settings.policy, limits.num_slots, fairness, weight_of)


def _device(settings: Settings) -> str:
    if settings.gpu_layers != 0:
        return settings.device
    if settings.device == "cuda":
        raise ValueError(
            "--gpu-layers 0 keeps the model off the card that --device cuda asks for; leave one of them out"
        )
    return "cpu"


def template_source(settings: Settings) -> str | None:
    """Return the chat template that the settings give, None where they leave it to the model.

    Raises OSError, and ValueError for an unknown name.
    """
    if settings.chat_template_file is not None:
        return settings.chat_template_file.read_text(encoding="utf-8") or None
    return template_of(settings.chat_template) if settings.chat_template else None


def choose_chat_template(settings: Settings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the template that the settings give, else the model's own. Raises OSError or TemplateError."""
    source = template_source(settings)
    if source is None:
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
        pooling=stated_pooling(checkpoint.path, checkpoint.gguf),
    )
