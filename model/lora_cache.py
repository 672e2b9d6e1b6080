"""Which adapters a runner has, and which stacks of lists it keeps: least recently used first, within a byte budget.

Not thread-safe: the model's thread owns it. Knows no files and no requests.
"""

from collections import OrderedDict
from collections.abc import Iterable

from model.adapter import Adapter
from model.backend import Backend
from model.lora import Adaptable, LoraStack, stack_adapters
from scheduler.cohort import CohortKey


class LoraCache:
    """The resident adapters, and the stacks of the lists used last."""

    def __init__(self, adapters: Iterable[Adapter], adaptable: Adaptable, backend: Backend, max_bytes: int) -> None:
        self._adapters = {adapter.id: adapter for adapter in adapters}
        self._adaptable = adaptable
        self._backend = backend
        self._max_bytes = max_bytes
        self._stacks: OrderedDict[CohortKey, LoraStack] = OrderedDict()
        self.num_bytes = 0
        """Held by the cached stacks; above `max_bytes` only where a single stack is larger than that."""

    def add(self, adapter: Adapter) -> None:
        """Make an adapter available to keys."""
        self._adapters[adapter.id] = adapter

    def drop(self, load_id: int) -> None:
        """Free an adapter and every stack it takes part in. No key may name it afterwards."""
        for adapter_id in [adapter_id for adapter_id in self._adapters if adapter_id.load_id == load_id]:
            del self._adapters[adapter_id]
        for key in [key for key in self._stacks if any(adapter_id.load_id == load_id for adapter_id, _ in key)]:
            self.num_bytes -= self._stacks.pop(key).num_bytes

    def get(self, key: CohortKey) -> LoraStack | None:
        """Return the stack of a key, built where it is not cached; None for the base key."""
        if not key:
            return None
        if key not in self._stacks:
            scaled = [(self._adapters[adapter_id], scale) for adapter_id, scale in key]
            self._insert(key, stack_adapters(scaled, self._adaptable, self._backend))
        self._stacks.move_to_end(key)
        return self._stacks[key]

    def _insert(self, key: CohortKey, stack: LoraStack) -> None:
        while self._stacks and self.num_bytes + stack.num_bytes > self._max_bytes:
            _, evicted = self._stacks.popitem(last=False)
            self.num_bytes -= evicted.num_bytes
        self._stacks[key] = stack
        self.num_bytes += stack.num_bytes
