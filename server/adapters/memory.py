"""Which adapters have a place in memory, what fits beside them, and which go first.

Pure and synchronous: it awaits nothing and starts nothing, residency.py does. A place is *promised* before its load
begins, and counts from then on, with an estimate of its size until that is known.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from server.adapters.catalog import AdapterEntry
from server.adapters.resident import AdapterListTooLong, Lease, ResidentAdapter

_MAX_LISTED = 10


class PlaceState(StrEnum):
    """What is in a place."""

    PROMISED = "promised"
    """Nothing yet: others must leave first."""
    LOADING = "loading"
    RESIDENT = "resident"
    LEAVING = "leaving"
    """Being freed. It takes memory until that is done, and nobody can use it."""


@dataclass(slots=True, eq=False)
class Place:
    """An adapter's place in memory."""

    entry: AdapterEntry
    num_bytes: int
    state: PlaceState = PlaceState.PROMISED
    resident: ResidentAdapter | None = None
    leases: set[Lease] = field(default_factory=set)
    num_promises: int = 0
    """Waiting requests whose whole list has been promised memory, this place included."""
    last_used: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it takes no memory any more."""

    @property
    def is_idle(self) -> bool:
        """Whether it holds an adapter that can leave now."""
        return self.state is PlaceState.RESIDENT and not self.leases and not self.num_promises


@dataclass(frozen=True, slots=True)
class Budget:
    """How many adapters, and of how many bytes, memory may hold; 0: any number."""

    max_resident: int
    max_bytes: int

    def admits(self, sizes: Collection[int]) -> bool:
        """Whether adapters of these sizes fit together."""
        return not (self.max_resident and len(sizes) > self.max_resident) and not (
            self.max_bytes and sum(sizes) > self.max_bytes
        )

    def refuse(self, names: Sequence[str], num_pinned: int, num_bytes: int) -> AdapterListTooLong:
        """Return the error about adapters that never fit, which take so much beside so many that stay."""
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        listed = ", ".join(repr(name) for name in names[:_MAX_LISTED]) + more
        listed = f"the adapter {listed}" if len(names) == 1 else f"the {len(names)} adapters {listed} together"
        beside = f" beside {num_pinned} that stay in memory" if num_pinned else ""
        if self.max_resident and len(names) + num_pinned > self.max_resident:
            return AdapterListTooLong(
                f"{listed} cannot be in memory{beside}, the limit is {self.max_resident} (--max-loras)"
            )
        return AdapterListTooLong(
            f"{listed} cannot be in memory{beside}: {num_bytes} bytes, the limit is {self.max_bytes} "
            "(--lora-memory-bytes)"
        )


class AdapterMemory:
    """The places, and the budget within which they stay."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.places: dict[AdapterEntry, Place] = {}
        """Of the adapters that are or will be in memory, in the order in which they got their places."""
        self.leaving: set[Place] = set()
        self._sizes: dict[AdapterEntry, int] = {}
        self._now = 0

    def note_size(self, entry: AdapterEntry, num_bytes: int, *, is_estimate: bool) -> None:
        """Note what an adapter takes; an estimate counts only until something better is known."""
        if not is_estimate or entry not in self._sizes:
            self._sizes[entry] = num_bytes

    def forget_size(self, entry: AdapterEntry) -> None:
        """Forget an adapter that will not come back."""
        self._sizes.pop(entry, None)

    def use(self, place: Place) -> None:
        """Note that a place is in use now."""
        self._now += 1
        place.last_used = self._now

    def place_for(self, entry: AdapterEntry) -> Place:
        """Return the place of an adapter, a new one where it has none."""
        if entry not in self.places:
            self.places[entry] = Place(entry, self._sizes[entry])
        return self.places[entry]

    def places_of(self, entry: AdapterEntry) -> list[Place]:
        """Return the place of an adapter, and those it is leaving."""
        return [place for place in (*self.places.values(), *self.leaving) if place.entry is entry]

    def begin_load(self, place: Place) -> None:
        """A load into a promised place begins."""
        assert place.state is PlaceState.PROMISED
        place.state = PlaceState.LOADING

    def arrive(self, place: Place, resident: ResidentAdapter) -> None:
        """A load has ended: its adapter can be used, and its size is known."""
        place.state, place.resident, place.num_bytes = PlaceState.RESIDENT, resident, resident.num_bytes
        self.note_size(place.entry, resident.num_bytes, is_estimate=False)
        self.use(place)

    def give_up(self, place: Place) -> None:
        """A place stays empty: it is promised to nobody any more, or its load has failed."""
        del self.places[place.entry]
        place.gone.set()

    def begin_leaving(self, place: Place) -> None:
        """An idle adapter begins to leave: nobody can use it, and its memory counts until it has left."""
        assert place.is_idle
        del self.places[place.entry]
        self.leaving.add(place)
        place.state = PlaceState.LEAVING

    def leave(self, place: Place) -> None:
        """An adapter has left."""
        self.leaving.remove(place)
        place.gone.set()

    @property
    def is_over(self) -> bool:
        """Whether the places hold more than the budget, because one turned out larger than its estimate."""
        return not self.budget.admits([place.num_bytes for place in self.places.values()])

    def can_begin(self, place: Place) -> bool:
        """Whether there is room for a load beside all that takes memory now, what leaves included."""
        present = [other for other in self.places.values() if other.state is not PlaceState.PROMISED]
        return self.budget.admits([other.num_bytes for other in (*present, *self.leaving, place)])

    def refusal(self, entries: Collection[AdapterEntry]) -> AdapterListTooLong | None:
        """Return why a list can never be in memory as a whole, beside what stays there; None where it can."""
        sizes = {entry: self._sizes[entry] for entry in entries}
        pinned = [place for place in self.places.values() if place.entry.is_pinned and place.entry not in sizes]
        if self.budget.admits([*sizes.values(), *(place.num_bytes for place in pinned)]):
            return None
        return self.budget.refuse([entry.name for entry in entries], len(pinned), sum(sizes.values()))

    def evictions(self, entries: Collection[AdapterEntry]) -> list[Place] | None:
        """Return the idle places that must leave for a list to fit, the least recently used first; None where they do
        not suffice."""
        idle = [place for place in self.places.values() if place.is_idle and not place.entry.is_pinned]
        taken, fits = self._take_until_fits(entries, sorted(idle, key=lambda place: place.last_used))
        return taken if fits else None

    def victims(self, entries: Collection[AdapterEntry], gated: Collection[AdapterEntry]) -> frozenset[AdapterEntry]:
        """Return the adapters, in use or not, that must become free for a list to fit. Those that were `gated` before
        come first, so that the choice lasts."""
        movable = [place for place in self.places.values() if not place.num_promises and not place.entry.is_pinned]
        movable.sort(key=lambda place: (bool(place.leases), place.entry not in gated, place.last_used))
        taken, _ = self._take_until_fits(entries, movable)
        return frozenset(place.entry for place in taken)

    def _take_until_fits(
        self, entries: Collection[AdapterEntry], candidates: Iterable[Place]
    ) -> tuple[list[Place], bool]:
        """Take candidates until `entries` fit in their stead; return them, and whether they suffice."""
        stay = {entry: place.num_bytes for entry, place in self.places.items()}
        stay |= {entry: self._sizes[entry] for entry in entries if entry not in stay}
        taken = []
        for place in candidates:
            if self.budget.admits(stay.values()):
                break
            if place.entry not in entries:
                del stay[place.entry]
                taken.append(place)
        return taken, self.budget.admits(stay.values())
