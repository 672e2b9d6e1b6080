"""What adapters there are, what they and their mixes are called, their current scales, and which list the fields `lora`
and `model` of a request ask for.

Pure and synchronous: it knows no weights and no memory (residency.py), and reads no files. The rules of `lora` are
llama-server's (absent or empty: the current scales; otherwise every adapter not named is 0, a missing scale is 0, of a
repeated adapter the last wins); what that server takes silently is refused here, with the field and its value.
"""

import copy
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from scheduler.cohort import as_float32
from server.adapters.weights import BASE_NAME
from server.errors import BodyInvalid, FieldInvalid, ModelUnknown

_MAX_NAME = 256
_MAX_LISTED = 10


class AdapterSource(StrEnum):
    """Where an adapter comes from."""

    COMMAND_LINE = "command line"
    FOLDER = "folder"
    RUN_TIME = "run time"


@dataclass(frozen=True, slots=True, eq=False)
class AdapterEntry:
    """An adapter that requests can ask for, in memory or not. Compared by identity: a replaced one is another."""

    id: int
    """Over HTTP. Never another adapter's, even after this one is removed; ids have gaps then."""
    name: str
    path: str
    is_pinned: bool
    """Loaded at the start, and never evicted."""
    source: AdapterSource


AdapterChoice: TypeAlias = tuple[tuple[AdapterEntry, float], ...]
"""An adapter list before anything is loaded: scales in float32, none of them 0, in the order of ids."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A list with a name. It names its adapters, so it outlives their removal, and cannot be asked for meanwhile."""

    name: str
    parts: tuple[tuple[str, float], ...]
    """(adapter name, scale)."""


class AdapterListError(FieldInvalid):
    """An adapter list that cannot be honoured; names the field and the value. Nothing has changed."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(field, f"{reason}, but got {json.dumps(value)[:200]}")


class NameRefused(ValueError):
    """A name that an adapter or a mix cannot have."""


class AdapterCatalog:
    """The adapters and mixes of one server, by id and by name, and the current scales."""

    def __init__(
        self,
        base_names: Sequence[str] = (),
        *,
        find: Callable[[str], str | None] = lambda name: None,
        are_names_expected: bool = False,
    ) -> None:
        """`find` returns the path of an adapter that is not in the catalog yet, by its name. `are_names_expected`: an
        unknown `model` is an error, because names are how adapters are chosen; otherwise it means the current scales.
        """
        self.base_names = tuple(base_names)
        """The names of the base model, never an adapter's."""
        self._find = find
        self._are_names_expected = are_names_expected
        self.load_ids = itertools.count()
        """For whoever loads adapters: no two loads of a server have one id, whatever model they are for."""
        self._ids = itertools.count()
        self._by_id: dict[int, AdapterEntry] = {}
        self._by_name: dict[str, AdapterEntry] = {}
        self._mixes: dict[str, Mix] = {}
        self._scales: dict[int, float] = {}
        """By id; 0 where absent."""
        self._removed: set[str] = set()

    def with_base(self, base_names: Sequence[str]) -> "AdapterCatalog":
        """Return the catalog as another base model's, sharing all adapters, mixes and scales from now on. Raises
        NameRefused where one of `base_names` is an adapter's or a mix's.
        """
        for name in base_names:
            if name in self._by_name or name in self._mixes:
                raise NameRefused(f"the model cannot be called {name!r}: an adapter or a mix has that name")
        other = copy.copy(self)
        other.base_names = tuple(base_names)
        return other

    @property
    def entries(self) -> tuple[AdapterEntry, ...]:
        """The adapters in the order of their ids."""
        return tuple(self._by_id.values())

    @property
    def mixes(self) -> tuple[Mix, ...]:
        """The mixes in the order in which they were defined."""
        return tuple(self._mixes.values())

    @property
    def current(self) -> AdapterChoice:
        """The list of a request that names none."""
        return _choice((self._by_id[adapter_id], scale) for adapter_id, scale in self._scales.items())

    def scale_of(self, entry: AdapterEntry) -> float:
        """Return the current scale of an adapter, in float32."""
        return self._scales.get(entry.id, 0.0)

    def named(self, name: str) -> AdapterEntry | None:
        """Return the adapter of that name, looked for on disk where it is new; None where there is none."""
        entry = self._by_name.get(name)
        if entry is None and name not in self._removed and self._refusal(name) is None:
            path = self._find(name)
            if path is not None:
                entry = self.add(name, path, AdapterSource.FOLDER)
        return entry

    def prepare(
        self, name: str, path: str, source: AdapterSource = AdapterSource.RUN_TIME, *, is_pinned: bool = False
    ) -> AdapterEntry:
        """Return an adapter that can be `put` in: under the next id, or in the place of the adapter of that name, with
        its id and its scale. Nothing changes yet, so that it can be tried first. Raises NameRefused.
        """
        present = self._by_name.get(name)
        if present is None:
            self.check_name(name)
        adapter_id = next(self._ids) if present is None else present.id
        return AdapterEntry(adapter_id, name, path, is_pinned, source)

    def put(self, entry: AdapterEntry) -> AdapterEntry | None:
        """Let requests ask for `entry`; return the adapter whose place it takes. Raises NameRefused where another has
        its name by now.
        """
        present = self._by_name.get(entry.name)
        if present is None or present.id != entry.id:
            self.check_name(entry.name)
        later = {number: self._by_id.pop(number) for number in tuple(self._by_id) if number > entry.id}
        self._by_id[entry.id] = self._by_name[entry.name] = entry
        self._by_id.update(later)
        self._removed.discard(entry.name)
        return present

    def add(
        self, name: str, path: str, source: AdapterSource, *, is_pinned: bool = False, scale: float = 0.0
    ) -> AdapterEntry:
        """Add an adapter under the next id, and return it. Raises NameRefused."""
        self.check_name(name)
        entry = self.prepare(name, path, source, is_pinned=is_pinned)
        self.put(entry)
        self._scales[entry.id] = as_float32(scale)
        return entry

    def remove(self, entry: AdapterEntry) -> None:
        """Take an adapter out. Its id is not used again, and its name is an error until it is added again."""
        assert self._by_id.get(entry.id) is entry, f"{entry.name!r} is not in the catalog"
        del self._by_id[entry.id], self._by_name[entry.name]
        self._scales.pop(entry.id, None)
        self._removed.add(entry.name)

    def define_mix(self, name: str, parts: Iterable[tuple[str, float]]) -> Mix:
        """Give a list a name, in place of what that mix was before. Raises NameRefused, or ValueError naming the part
        that cannot be.
        """
        mix = Mix(name, tuple((part, as_float32(scale)) for part, scale in parts))
        if name not in self._mixes:
            self.check_name(name)
        names = [part for part, _ in mix.parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a mix names each of its adapters once, and at least one, but {name!r} has {names}")
        for part in names:
            if self.named(part) is None:
                raise ValueError(f"the mix {name!r} names {part!r}, which is no adapter; {self._there_are()}")
        self._mixes[name] = mix
        self._removed.discard(name)
        return mix

    def remove_mix(self, name: str) -> None:
        """Forget a mix. Raises KeyError where there is none of that name."""
        del self._mixes[name]
        self._removed.add(name)

    def set_scales(self, body: object) -> None:
        """Replace the current scales by the list `body`: every adapter not named gets 0. Raises BodyInvalid or
        AdapterListError.
        """
        if not isinstance(body, list):
            raise BodyInvalid("Request body must be an array")
        scales = self.read_list(body, "")
        self._scales.clear()
        self._scales.update((entry.id, scale) for entry, scale in scales)

    def resolve(self, lora: object, model: str | None) -> AdapterChoice:
        """Return the list that a request's fields `lora` and `model` ask for.

        `lora` is the JSON value as sent, None where absent; a list that is not empty goes before `model`. Raises
        AdapterListError or ModelUnknown.
        """
        listed = None if lora is None else self.read_list(lora, "lora")
        by_name = self._choose(model)
        return listed if lora and listed is not None else by_name

    def chosen_name(self, lora: object, model: str | None) -> str | None:
        """Return `model` where it is what chooses the list, as the name of an adapter or of a mix; else None."""
        if lora or model is None or not any(self._has(name) for name in (model, *self._behind_base(model))):
            return None
        return model

    def read_list(self, value: object, field: str) -> AdapterChoice:
        """Return the list that a JSON value is: `[{"id" or "name", "scale"}, …]`. Raises AdapterListError, which names
        the place under `field`.
        """
        if not isinstance(value, list):
            raise AdapterListError(field, value, "must be an array of objects with 'id' and 'scale' fields")
        scales: dict[AdapterEntry, float] = {}
        for index, element in enumerate(value):
            place = f"{field}[{index}]"
            if not isinstance(element, dict):
                raise AdapterListError(place, element, "must be an object with 'id' and 'scale' fields")
            entry = self._read_entry(element.get("id"), element.get("name"), place)
            scales[entry] = _read_scale(element.get("scale"), f"{place}.scale")
        return _choice(scales.items())

    def _read_entry(self, adapter_id: object, name: object, place: str) -> AdapterEntry:
        if name is None:
            return self._read_id(adapter_id, f"{place}.id")
        entry = self.named(name) if isinstance(name, str) else None
        if entry is None:
            raise AdapterListError(f"{place}.name", name, f"must be the name of an adapter; {self._there_are()}")
        if adapter_id is not None and self._read_id(adapter_id, f"{place}.id") is not entry:
            raise AdapterListError(f"{place}.id", adapter_id, f"must be {entry.id}, the id of {name!r}")
        return entry

    def _read_id(self, value: object, field: str) -> AdapterEntry:
        if not isinstance(value, int) or isinstance(value, bool):
            raise AdapterListError(field, value, "must be a whole number, the id of a loaded adapter")
        if not self._by_id:
            raise AdapterListError(field, value, "no adapter is loaded; start the server with --lora")
        if value not in self._by_id:
            raise AdapterListError(field, value, f"must be the id of a loaded adapter, {_ranges(self._by_id)}")
        return self._by_id[value]

    def _choose(self, model: str | None) -> AdapterChoice:
        if model is None or model in self.base_names:
            return self.current
        behind_base = self._behind_base(model)
        for name in (model, *behind_base):
            if name in self._mixes:
                return self._mixed(self._mixes[name])
            entry = self.named(name)
            if entry is not None:
                return ((entry, 1.0),)
        if behind_base or self._are_names_expected or self._mixes or model in self._removed:
            raise ModelUnknown(f"The model `{model[:_MAX_NAME]}` does not exist; {self._there_are()}")
        return self.current

    def _behind_base(self, model: str) -> list[str]:
        """The names that `base:name` may mean, where `model` is that."""
        return [model.removeprefix(f"{base}:") for base in self.base_names if model.startswith(f"{base}:")]

    def _mixed(self, mix: Mix) -> AdapterChoice:
        scales = []
        for name, scale in mix.parts:
            entry = self.named(name)
            if entry is None:
                raise ModelUnknown(f"The mix `{mix.name}` needs the adapter `{name}`, which does not exist any more")
            scales.append((entry, scale))
        return _choice(scales)

    def _has(self, name: str) -> bool:
        return name in self._by_name or name in self._mixes

    def _there_are(self) -> str:
        names = [*self.base_names, *self._by_name, *self._mixes]
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        return f"there are {', '.join(names[:_MAX_LISTED])}{more}"

    def check_name(self, name: str) -> None:
        """Raise NameRefused where `name` cannot be a new adapter's or mix's."""
        refusal = self._refusal(name)
        if refusal is not None:
            raise NameRefused(refusal)

    def _refusal(self, name: str) -> str | None:
        if not name or len(name) > _MAX_NAME or not name.isprintable() or name.strip() != name or "," in name:
            return (
                f"an adapter or a mix is called by 1 to {_MAX_NAME} printable characters without commas, "
                f"not {name[:_MAX_NAME]!r}"
            )
        if name == BASE_NAME or name in self.base_names or self._behind_base(name):
            return f"{name!r} names the base model"
        if self._has(name):
            return f"{name!r} is the name of another adapter or mix already"
        return None


def _choice(scales: Iterable[tuple[AdapterEntry, float]]) -> AdapterChoice:
    return tuple(sorted(((entry, scale) for entry, scale in scales if scale != 0.0), key=lambda pair: pair[0].id))


def _read_scale(value: object, field: str) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise AdapterListError(field, value, "must be a number")
    try:
        return as_float32(float(value))
    except (OverflowError, ValueError):
        raise AdapterListError(field, value, "must be a finite number in float32") from None


def _ranges(ids: Iterable[int]) -> str:
    """Return ascending ids in words: `0 to 3, 5`."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    words = [" to ".join(str(number) for number in run) for run in runs]
    return ", ".join(words[:_MAX_LISTED]) + (", …" if len(words) > _MAX_LISTED else "")


def shortest(scale: float) -> float:
    """Return the shortest decimal number that rounds to the same float32, as people wrote it: 0.3, not
    0.30000001192092896.
    """
    for digits in range(1, 10):
        candidate = float(f"{scale:.{digits}g}")
        if struct.pack("f", candidate) == struct.pack("f", scale):
            return candidate
    return scale
