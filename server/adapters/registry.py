"""Which adapter list a request gets, and what it is computed and read with: the one resolver that every route asks.

It joins what there is (catalog.py) with what is in memory (residency.py): the list of a request is resolved
when the request arrives, loaded where it must be, and held in memory until the request has ended. It knows no weights.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from model.adapters.tensors import AdapterError
from model.adapters.tokenizer import AdapterTokenizer, tokenizer_of_list
from model.tokens.chat_template import ChatTemplate
from model.tokens.tokenizer import Tokenizer
from scheduler.cohort import Activation, Activations, AdapterId, CohortKey, cohort_key
from scheduler.events import Event, Finished
from server.adapters.catalog import AdapterCatalog, AdapterChoice, AdapterEntry, AdapterSource, shortest
from server.adapters.residency import Residency
from server.adapters.resident import AdapterUnloaded, Lease, ResidentAdapter
from server.errors import FieldInvalid

_MAX_REMEMBERED = 1024


class TokenizerConflict(FieldInvalid):
    """Adapters of one list were trained with tokenizers that cannot be one."""


class ServedList:
    """The adapter list of one body's requests, in memory until it is released: after the last of its requests has
    ended, or by `release` where there is none.
    """

    def __init__(
        self, registry: "AdapterRegistry", lease: Lease, key: CohortKey, text: AdapterTokenizer, model: str | None
    ) -> None:
        self.key = key
        """The complete list; what takes effect on a prompt is `activate`'s to say."""
        self.tokenizer = text.tokenizer
        """The base model's, or that of an adapter of the list which brings its own."""
        self.chat_template = text.chat_template
        self.model = model
        """The name by which it was chosen, and which answers carry; None where it was not chosen by name."""
        self.lease = lease
        self.waited_s = 0.0
        """How long the request waited for its adapters."""
        self._registry = registry
        self._request_ids: set[int] = set()

    def activate(self, prompt: tuple[int, ...]) -> tuple[CohortKey, Activations]:
        """Return the list that takes effect on a prompt, and where its activated adapters begin to act.

        An adapter whose invocation is not in the prompt does not act on it, and is not in the list.
        """
        residents = self.lease.residents.values()
        invocations = {resident.id: resident.invocation_tokens for resident in residents if resident.invocation_tokens}
        dormant: list[AdapterId] = []
        activations: list[Activation] = []
        for adapter, _ in self.key:
            invocation = invocations.get(adapter)
            if invocation is not None:
                start = last_occurrence(prompt, invocation)
                if start is None:
                    dormant.append(adapter)
                else:
                    activations.append(Activation(start, adapter))
        return tuple(pair for pair in self.key if pair[0] not in dormant), tuple(activations)

    def scales_of(self, key: CohortKey) -> list[dict[str, object]]:
        """Return what of the list takes effect on a prompt as `AdapterRegistry.scales_of` does, however long after."""
        entries = {resident.id: entry for entry, resident in self.lease.residents.items()}
        return self._registry.as_json({entries[adapter]: scale for adapter, scale in key})

    def attach(self, request_ids: Iterable[int]) -> None:
        """Hold the list until all these requests have ended. Raises AdapterUnloaded where an adapter of it is being
        unloaded by force.
        """
        assert not self.lease.is_released, "requests for a list that was released"
        if self.lease.is_revoked:
            raise AdapterUnloaded(", ".join(entry.name for entry in self.lease.residents))
        self._request_ids.update(request_ids)
        self._registry.follow(self, self._request_ids)

    def end(self, request_id: int) -> None:
        """Note the end of one of its requests."""
        self._request_ids.discard(request_id)
        if not self._request_ids:
            self.release()

    def release(self) -> None:
        """Let go of the adapters; its requests have ended, or never begin. Again it does nothing."""
        if not self.lease.is_released:
            self._registry.forget(self)
            self.lease.release()

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Its requests that have not ended."""
        return tuple(self._request_ids)


class AdapterRegistry:
    """The adapters of one model: resolves, holds and names lists."""

    def __init__(
        self, catalog: AdapterCatalog, residency: Residency, tokenizer: Tokenizer, chat_template: ChatTemplate | None
    ) -> None:
        """`tokenizer` and `chat_template` are the base model's."""
        self.catalog = catalog
        self.residency = residency
        self._base = AdapterTokenizer(tokenizer, {}, chat_template)
        self._held: dict[Lease, ServedList] = {}
        self._by_request: dict[int, ServedList] = {}
        self._known: OrderedDict[AdapterId, AdapterEntry] = OrderedDict()
        """Who the adapters of keys are: of all that are held, and of the latest others."""

    async def acquire(self, lora: object, model: str | None) -> ServedList:
        """Return the list that a request's fields ask for, with its adapters in memory. The caller releases it.

        It is resolved before anything is awaited, and where everything is in memory nothing is. Raises
        AdapterListError, ModelUnknown, and what loading raises.
        """
        choice, name = self.catalog.resolve(lora, model), self.catalog.chosen_name(lora, model)
        served = self.try_serve(choice, name)
        return await self.serve(choice, name) if served is None else served

    def try_serve(self, choice: AdapterChoice, name: str | None = None) -> ServedList | None:
        """Return a resolved list at once where all of it is in memory and nobody waits for that; else None. `name` is
        what it was chosen by.
        """
        lease = self.residency.try_acquire([entry for entry, _ in choice])
        return None if lease is None else self._serve(choice, lease, name)

    async def serve(self, choice: AdapterChoice, name: str | None = None) -> ServedList:
        """Return a resolved list once all of it is in memory. May be cancelled."""
        return self._serve(choice, await self.residency.acquire([entry for entry, _ in choice]), name)

    def _serve(self, choice: AdapterChoice, lease: Lease, name: str | None) -> ServedList:
        residents = [lease.residents[entry] for entry, _ in choice]
        try:
            text = self._tokenizer_of(residents)
        except TokenizerConflict:
            lease.release()
            raise
        key = cohort_key((resident.id, scale) for resident, (_, scale) in zip(residents, choice, strict=True))
        served = self._held[lease] = ServedList(self, lease, key, text, name)
        self._remember(lease.residents)
        return served

    def _tokenizer_of(self, residents: Sequence[ResidentAdapter]) -> AdapterTokenizer:
        base = self._base
        vocab_size = max([base.tokenizer.vocab_size, *(resident.vocabulary_end for resident in residents)])
        named = [(resident.name, resident.tokenizer) for resident in residents if resident.tokenizer is not None]
        if not named and vocab_size == base.tokenizer.vocab_size:
            return base
        try:
            return tokenizer_of_list(base, named, vocab_size)
        except AdapterError as error:
            raise TokenizerConflict("lora", str(error)) from error

    def _remember(self, residents: Mapping[AdapterEntry, ResidentAdapter]) -> None:
        for entry, resident in residents.items():
            self._known[resident.id] = entry
            self._known.move_to_end(resident.id)
        if len(self._known) > 2 * _MAX_REMEMBERED:
            held = {adapter for served in self._held.values() for adapter, _ in served.key}
            for adapter in [adapter for adapter in self._known if adapter not in held][:-_MAX_REMEMBERED]:
                del self._known[adapter]

    def follow(self, served: ServedList, request_ids: Iterable[int]) -> None:
        """Tell `served` when these requests end."""
        self._by_request.update(dict.fromkeys(request_ids, served))

    def forget(self, served: ServedList) -> None:
        """Note that a list is not held any more."""
        del self._held[served.lease]
        for request_id in served.request_ids:  # those that never began
            self._by_request.pop(request_id, None)

    def requests_under(self, lease: Lease) -> tuple[int, ...]:
        """Return the ids of the requests that hold a lease and have not ended."""
        served = self._held.get(lease)
        return () if served is None else served.request_ids

    def observe(self, event: Event) -> None:
        """Take an event of the step loop: the end of a request may be the end of its list's use."""
        if isinstance(event, Finished):
            served = self._by_request.pop(event.request_id, None)
            if served is not None:
                served.end(event.request_id)

    def name_of(self, adapter: AdapterId) -> str:
        """Return the name of the adapter of a key, for a while after the key's last request too. Raises KeyError."""
        return self._known[adapter].name

    def scales_of(self, key: CohortKey) -> list[dict[str, object]]:
        """Return the key of a request that runs or waits as a list for JSON."""
        return self.as_json({self._known[adapter]: scale for adapter, scale in key})

    def knows(self, key: CohortKey) -> bool:
        """Whether all adapters of a key are remembered."""
        return all(adapter in self._known for adapter, _ in key)

    def names_of(self, key: CohortKey) -> dict[AdapterId, str]:
        """Return the names of those adapters of a key that are remembered, however long after its last request."""
        return {adapter: self._known[adapter].name for adapter, _ in key if adapter in self._known}

    def current_scales(self) -> list[dict[str, object]]:
        """Return the current scales as a list for JSON."""
        return self.as_json(dict(self.catalog.current))

    def as_json(self, scales: Mapping[AdapterEntry, float]) -> list[dict[str, object]]:
        """Return a list for JSON, which can be sent back as it is: one `{"id", "name", "scale"}` for each of its
        adapters and, at 0, for the others of the command line.
        """
        ids = {entry.id for entry in scales}
        entries = self.catalog.entries
        shown = [entry for entry in entries if entry.source is AdapterSource.COMMAND_LINE and entry.id not in ids]
        # An empty list would be the current scales.
        shown = [*scales, *shown] or [*entries[:1]]
        return [
            {"id": entry.id, "name": entry.name, "scale": shortest(scales.get(entry, 0.0))}
            for entry in sorted(shown, key=lambda entry: entry.id)
        ]


def last_occurrence(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> int | None:
    """Return where `wanted` begins in `tokens` for the last time, or None where it never does."""
    for start in range(len(tokens) - len(wanted), -1, -1):
        if tokens[start] == wanted[0] and tokens[start : start + len(wanted)] == wanted:
            return start
    return None
