"""An adapter in memory as values: what is known of it, who uses it, who loads it, and what happened to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from model.adapters.tokenizer import AdapterTokenizer
from scheduler.cohort import AdapterId, CohortKey
from server.adapters.catalog import AdapterEntry
from server.errors import BodyInvalid, ModelUnknown


@dataclass(frozen=True, slots=True, eq=False)
class ResidentAdapter:
    """An adapter that steps can use now."""

    id: AdapterId
    """Of this load: the same adapter, loaded again, has another load id."""
    name: str
    path: str
    num_bytes: int
    task_name: str = ""
    prompt_prefix: str = ""
    invocation_tokens: tuple[int, ...] = ()
    """The adapter acts from their last occurrence in a prompt on (aLoRA); empty where it acts on all tokens."""
    tokenizer: AdapterTokenizer | None = None
    """None where the base model's is used."""
    vocabulary_end: int = 0
    """One more than the highest token id of which it changes a row."""
    load_s: float = 0.0
    """How long its loading took."""


class AdapterLoader(Protocol):
    """Gets adapters into memory and out again."""

    def estimate_bytes(self, entry: AdapterEntry) -> int:
        """Guess, at once, the memory that an adapter will take. Never raises."""
        ...

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        """Return the adapter when steps can use it. Raises AdapterError where it cannot be loaded; nothing of it is
        left in memory then."""
        ...

    async def drop(self, resident: ResidentAdapter) -> None:
        """Free the memory of an adapter that nobody uses."""
        ...


class ListPreparer(Protocol):
    """Gets ready what steps need under the key of an adapter list, beside its adapters."""

    def is_prepared(self, key: CohortKey) -> bool:
        """Return whether steps under a key can begin at once."""
        ...

    async def prepare(self, key: CohortKey) -> None:
        """Get a key ready without delaying steps. Its adapters are in memory for as long as somebody awaits it."""
        ...


class ModelLists(AdapterLoader, ListPreparer, Protocol):
    """What one model does about adapters while its steps run."""


class Lease:
    """The right of a request to use its adapters: they stay in memory until it is released."""

    __slots__ = ("_on_release", "is_released", "is_revoked", "residents")

    def __init__(
        self, residents: Mapping[AdapterEntry, ResidentAdapter], on_release: Callable[["Lease"], None]
    ) -> None:
        self.residents = residents
        self.is_released = False
        self.is_revoked = False
        """Whether one of the adapters is being unloaded by force: end what runs under the lease, and begin nothing."""
        self._on_release = on_release

    def release(self) -> None:
        """Give the adapters back. Counts once, however often it is called."""
        if not self.is_released:
            self.is_released = True
            self._on_release(self)


class AdapterListTooLong(BodyInvalid, ValueError):
    """The adapters of a list do not fit in memory together, whatever else goes. Names them and the limit."""


class AdapterUnloaded(ModelUnknown):
    """An adapter was unloaded while a request waited for it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the adapter {name!r} has been unloaded")
        self.name = name


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """An adapter has come into memory."""

    resident: ResidentAdapter


@dataclass(frozen=True, slots=True)
class AdapterLoadFailed:
    """An adapter could not be loaded; every request that waited for it has been told."""

    entry: AdapterEntry
    error: BaseException


@dataclass(frozen=True, slots=True)
class AdapterDropped:
    """The memory of an adapter is free again."""

    resident: ResidentAdapter
    is_eviction: bool
    """True where it made room for others, False where it was unloaded or replaced."""


ResidencyEvent: TypeAlias = AdapterLoaded | AdapterLoadFailed | AdapterDropped
