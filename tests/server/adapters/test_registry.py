"""Lists that are served: what of them acts where, what they are read with, and how long they are held. Without HTTP."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.adapters.tokenizer import AdapterTokenizer
from model.tokens.chat_template import ChatTemplate
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import SamplingParams
from scheduler.cohort import BASE, Activation, CohortKey, cohort_key
from scheduler.events import FinishReason
from scheduler.request import Request
from server.adapters.catalog import AdapterCatalog, AdapterEntry, AdapterSource
from server.adapters.registry import AdapterRegistry, ServedList, TokenizerConflict, last_occurrence
from server.adapters.residency import Residency
from server.adapters.resident import AdapterUnloaded, Lease, ResidentAdapter
from server.errors import ModelUnknown
from tests.server.fakes import VOCAB_SIZE, FakeLoader, byte_tokenizer, fake_resident

Make = Callable[[AdapterEntry, int], ResidentAdapter]


def make_registry(
    num_adapters: int = 3,
    make: Make = fake_resident,
    max_resident: int = 0,
    source: AdapterSource = AdapterSource.FOLDER,
) -> AdapterRegistry:
    """Adapters at scale 0 that are loaded when they are first asked for: adapter0, adapter1, …"""
    catalog = AdapterCatalog(("fake",), are_names_expected=True)
    for index in range(num_adapters):
        catalog.add(f"adapter{index}", f"adapter{index}.gguf", source)
    tokenizer = byte_tokenizer()
    residency = Residency(FakeLoader(make), max_resident, 0, load_ids=catalog.load_ids)
    return AdapterRegistry(catalog, residency, tokenizer, tokenizer.chat_template)


def ended(request_id: int, key: CohortKey) -> Request:
    return Request(request_id, key, (1,), SamplingParams(), 1)


def acquire(registry: AdapterRegistry, lora: object = None, model: str | None = None) -> ServedList:
    return asyncio.run(registry.acquire(lora, model))


def test_a_list_is_its_adapters_as_they_are_in_memory() -> None:
    registry = make_registry()
    served = acquire(registry, [{"id": 2, "scale": 0.5}, {"id": 0, "scale": -1}])
    ids = {resident.name: resident.id for resident in registry.residency.residents}
    assert served.key == cohort_key([(ids["adapter0"], -1.0), (ids["adapter2"], 0.5)])
    assert [registry.name_of(adapter) for adapter in ids.values()] == list(ids)
    assert served.model is None


def test_what_is_in_memory_is_served_without_waiting() -> None:
    registry = make_registry()
    choice = registry.catalog.resolve(None, "adapter1")
    assert registry.try_serve(choice) is None
    asyncio.run(registry.acquire(None, "adapter1"))
    served = registry.try_serve(choice, "adapter1")
    assert served is not None
    assert served.model == "adapter1"


def test_the_list_is_that_of_the_arrival_however_long_it_is_waited_for() -> None:
    registry = make_registry()
    registry.catalog.set_scales([{"id": 0, "scale": 2}])

    async def arrive_and_change() -> ServedList:
        arriving = asyncio.create_task(registry.acquire(None, None))
        await asyncio.sleep(0)  # It runs up to its first await.
        assert not arriving.done()
        registry.catalog.set_scales([{"id": 1, "scale": 3}])
        return await arriving

    served = asyncio.run(arrive_and_change())
    assert [(registry.name_of(adapter), scale) for adapter, scale in served.key] == [("adapter0", 2.0)]


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ModelUnknown):
        acquire(make_registry(), None, "adapter9")


# How long a list is held.


def test_a_list_is_held_until_the_last_of_its_requests_has_ended() -> None:
    registry = make_registry()
    served = acquire(registry, None, "adapter0")
    served.attach([7, 8])
    assert set(registry.requests_under(served.lease)) == {7, 8}
    registry.observe(ended(5, BASE).finished(FinishReason.EOS, "", 0.0))
    registry.observe(ended(7, served.key).finished(FinishReason.EOS, "", 0.0))
    assert registry.residency.num_references == 1
    registry.observe(ended(8, served.key).finished(FinishReason.ABORT, "", 0.0))
    assert registry.residency.num_references == 0
    assert registry.requests_under(served.lease) == ()
    served.release()
    assert registry.residency.num_references == 0


def test_requests_that_never_begin_hold_nothing_after_the_release() -> None:
    registry = make_registry()
    served, other = acquire(registry, None, "adapter0"), acquire(registry, None, "adapter0")
    served.attach([7])
    other.attach([8])
    served.release()
    served.release()
    assert registry.residency.num_references == 1
    registry.observe(ended(7, served.key).finished(FinishReason.ABORT, "", 0.0))
    assert registry.residency.num_references == 1
    other.release()
    assert registry.residency.num_references == 0


def test_a_list_whose_adapter_is_unloaded_by_force_begins_nothing() -> None:
    registry = make_registry()

    async def play() -> None:
        served = await registry.acquire(None, "adapter0")
        [entry] = served.lease.residents
        revoked: list[Lease] = []
        unloading = asyncio.create_task(registry.residency.unload(entry, revoked.append))
        await asyncio.sleep(0)
        assert revoked == [served.lease]
        with pytest.raises(AdapterUnloaded, match="adapter0"):
            served.attach([1])
        served.release()
        await unloading

    asyncio.run(play())


def test_names_stay_known_for_the_events_after_the_last_request() -> None:
    registry = make_registry(3000, max_resident=1)

    async def play() -> None:
        first = await registry.acquire(None, "adapter0")
        first.release()
        held = await registry.acquire(None, "adapter1")
        held.release()
        for index in range(2, 3000):
            (await registry.acquire(None, f"adapter{index}")).release()
            if index == 3:
                assert registry.name_of(first.key[0][0]) == "adapter0"
        with pytest.raises(KeyError):
            registry.name_of(first.key[0][0])

    asyncio.run(play())


def test_names_of_what_is_held_are_never_forgotten() -> None:
    registry = make_registry(3000, max_resident=2)

    async def play() -> None:
        held = await registry.acquire(None, "adapter0")
        for index in range(1, 3000):
            (await registry.acquire(None, f"adapter{index}")).release()
        assert registry.name_of(held.key[0][0]) == "adapter0"
        held.release()

    asyncio.run(play())


# As JSON.


def test_a_list_can_be_sent_back_as_it_is_shown() -> None:
    registry = make_registry(source=AdapterSource.COMMAND_LINE)
    lora = [{"id": 0, "scale": 0.3}, {"id": 2, "scale": -1.1}]
    served = acquire(registry, lora)
    shown = served.scales_of(served.key)
    assert shown == [
        {"id": 0, "name": "adapter0", "scale": 0.3},
        {"id": 1, "name": "adapter1", "scale": 0.0},
        {"id": 2, "name": "adapter2", "scale": -1.1},
    ]
    assert shown == registry.scales_of(served.key)
    assert acquire(registry, shown).key == served.key


def test_of_the_others_only_those_of_the_command_line_are_shown_and_at_least_one() -> None:
    registry = make_registry(source=AdapterSource.FOLDER)
    registry.catalog.set_scales([{"id": 2, "scale": 1}])
    assert registry.current_scales() == [{"id": 2, "name": "adapter2", "scale": 1.0}]
    shown = registry.scales_of(BASE)
    assert shown == [{"id": 0, "name": "adapter0", "scale": 0.0}]
    assert acquire(registry, shown).key == BASE
    assert make_registry(0).current_scales() == []


def test_a_list_is_shown_after_its_adapters_are_gone() -> None:
    registry = make_registry()
    served = acquire(registry, None, "adapter1")
    served.release()
    registry.catalog.remove(registry.catalog.entries[1])
    assert served.scales_of(served.key) == [{"id": 1, "name": "adapter1", "scale": 1.0}]


# What a list is read with.


def tokenizer_of(entry: AdapterEntry, load_id: int, added: dict[int, str], template: str | None) -> ResidentAdapter:
    """An adapter that brings a tokenizer with more tokens."""
    base = byte_tokenizer()
    pieces = [*base.vocabulary.pieces, *(text.encode() for _, text in sorted(added.items()))]
    tokenizer = Tokenizer(replace(base.vocabulary, pieces=tuple(pieces)), VOCAB_SIZE + len(added))
    own = base.chat_template if template is None else ChatTemplate(template)
    shipped = AdapterTokenizer(tokenizer, added, own)
    return replace(fake_resident(entry, load_id), tokenizer=shipped, vocabulary_end=VOCAB_SIZE + len(added))


def shipping(*added: tuple[dict[int, str], str | None]) -> Make:
    """The first adapters bring these tokens and templates, the others nothing."""

    def make(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        if entry.id < len(added):
            return tokenizer_of(entry, load_id, *added[entry.id])
        return fake_resident(entry, load_id)

    return make


ALL = [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}, {"id": 2, "scale": 1}]


def test_a_list_is_read_with_the_tokenizer_of_its_adapter() -> None:
    registry = make_registry(make=shipping(({259: "<a>"}, "{{ 'own' }}")))
    served = acquire(registry, ALL)
    assert (served.tokenizer.vocab_size, served.tokenizer.piece(259)) == (260, b"<a>")
    assert served.chat_template is not None
    assert served.chat_template.render([]) == "own"
    base = acquire(registry, None, "adapter1")
    assert base.tokenizer is acquire(registry).tokenizer
    assert (base.tokenizer.vocab_size, base.chat_template) == (VOCAB_SIZE, base.tokenizer.chat_template)


def test_the_tokenizer_with_more_tokens_is_taken_where_they_agree() -> None:
    registry = make_registry(make=shipping(({259: "<a>"}, None), ({259: "<a>", 260: "<b>"}, None)))
    assert acquire(registry, ALL).tokenizer.piece(260) == b"<b>"


def test_adapters_that_give_a_token_two_meanings_cannot_be_in_one_list() -> None:
    registry = make_registry(make=shipping(({259: "<a>"}, None), ({259: "<b>"}, None)))
    with pytest.raises(TokenizerConflict, match=r"'adapter0' and 'adapter1'.*259"):
        acquire(registry, ALL)
    assert registry.residency.num_references == 0
    assert acquire(registry, None, "adapter1").tokenizer.piece(259) == b"<b>"


def test_templates_that_differ_give_way_to_the_base_models() -> None:
    registry = make_registry(make=shipping(({259: "<a>"}, "{{ 'a' }}"), ({259: "<a>"}, "{{ 'b' }}")))
    served = acquire(registry, ALL)
    assert served.chat_template is acquire(registry).chat_template


def test_rows_without_a_tokenizer_extend_the_vocabulary() -> None:
    registry = make_registry(make=lambda entry, load_id: replace(fake_resident(entry, load_id), vocabulary_end=300))
    served = acquire(registry, None, "adapter0")
    assert (served.tokenizer.vocab_size, served.tokenizer.piece(299)) == (300, b"")


# Activated adapters.

INVOCATIONS = {0: (5, 5, 6), 1: (7,)}


def late(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
    return replace(fake_resident(entry, load_id), invocation_tokens=INVOCATIONS.get(entry.id, ()))


LATE = [{"id": 0, "scale": 1}, {"id": 1, "scale": -0.5}, {"id": 2, "scale": 2}]


def test_adapters_act_from_the_last_invocation_on() -> None:
    served = acquire(make_registry(make=late), LATE)
    ids = [adapter for adapter, _ in served.key]
    prompt = (7, 5, 5, 6, 1, 5, 5, 5, 6, 2, 7, 5, 5)
    assert served.activate(prompt) == (served.key, (Activation(6, ids[0]), Activation(10, ids[1])))


def test_an_adapter_that_is_not_invoked_is_not_in_the_list() -> None:
    registry = make_registry(make=late)
    served = acquire(registry, LATE)
    ids = [adapter for adapter, _ in served.key]
    assert served.activate((5, 6, 7)) == (cohort_key([(ids[1], -0.5), (ids[2], 2.0)]), (Activation(2, ids[1]),))
    assert acquire(registry, None, "adapter0").activate((5, 5)) == (BASE, ())


def test_an_adapter_that_the_list_does_not_name_is_not_invoked() -> None:
    registry = make_registry(make=late)
    served = acquire(registry, None, "adapter2")
    assert served.activate((5, 5, 6, 7)) == (served.key, ())
    assert acquire(registry).activate((5, 5, 6, 7)) == (BASE, ())


few_tokens = st.integers(0, 2)


@settings(deadline=None)
@given(st.lists(few_tokens, max_size=12).map(tuple), st.lists(few_tokens, min_size=1, max_size=4).map(tuple))
def test_the_last_occurrence_is_the_last_of_all(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    places = [start for start in range(len(tokens)) if tokens[start : start + len(wanted)] == wanted]
    assert last_occurrence(tokens, wanted) == (places[-1] if places else None)
