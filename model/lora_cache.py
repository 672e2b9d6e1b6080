"""Which adapters a runner has, and which stacks of lists it keeps: least recently used first, within a byte budget.

Safe for threads, so that a stack can be built on another thread than the model's before a step needs it. The lock
guards the tables alone: no thread waits for another that builds, and of two stacks of one key the first that is ready
stays. Knows no files and no requests.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from model.adapters.adapter import Adapter
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
        self._lock = threading.Lock()
        self._stacks: OrderedDict[CohortKey, LoraStack] = OrderedDict()
        self.num_bytes = 0
        """Held by the cached stacks; above `max_bytes` only where a single stack is larger than that."""

    def add(self, adapter: Adapter) -> None:
        """Make an adapter available to keys."""
        with self._lock:
            self._adapters[adapter.id] = adapter

    def drop(self, load_id: int) -> None:
        """Free an adapter and every stack it takes part in. No key may name it afterwards.

        A stack that is being built with it is not kept.
        """
        with self._lock:
            for adapter_id in [adapter_id for adapter_id in self._adapters if adapter_id.load_id == load_id]:
                del self._adapters[adapter_id]
            of_adapter = [key for key in self._stacks if any(adapter_id.load_id == load_id for adapter_id, _ in key)]
            dropped = [self._remove(key) for key in of_adapter]
        del dropped  # freed without the lock, for that takes a while

    def has(self, key: CohortKey) -> bool:
        """Return whether `get` would build nothing. It is a use of the key, which lasts the longer for it."""
        with self._lock:
            return not key or self._use(key) is not None

    def get(self, key: CohortKey) -> LoraStack | None:
        """Return the stack of a key, built on the caller's thread where it is not cached; None for the base key.

        Raises KeyError where the key names an adapter that is not there.
        """
        if not key:
            return None
        with self._lock:
            cached = self._use(key)
            if cached is not None:
                return cached
            scaled = [(self._adapters[adapter_id], scale) for adapter_id, scale in key]
        return self._keep(key, stack_adapters(scaled, self._adaptable, self._backend))

    def _use(self, key: CohortKey) -> LoraStack | None:
        stack = self._stacks.get(key)
        if stack is not None:
            self._stacks.move_to_end(key)
        return stack

    def _keep(self, key: CohortKey, built: LoraStack) -> LoraStack:
        with self._lock:
            first = self._use(key)
            if first is not None:
                return first
            evicted = []
            if all(adapter_id in self._adapters for adapter_id, _ in key):
                while self._stacks and self.num_bytes + built.num_bytes > self._max_bytes:
                    evicted.append(self._remove(next(iter(self._stacks))))
                self._stacks[key] = built
                self.num_bytes += built.num_bytes
        del evicted  # freed without the lock
        return built

    def _remove(self, key: CohortKey) -> LoraStack:
        stack = self._stacks.pop(key)
        self.num_bytes -= stack.num_bytes
        return stack
