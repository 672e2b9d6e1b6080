"""Adapters of files into a model's memory and out again: read on a thread of their own, handed to the steps between two
of them.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

from model.adapters.adapter import Adapter, BaseWeights
from model.adapters.files import load_adapter
from model.adapters.tensors import AdapterError
from model.adapters.tokenizer import AdapterTokenizers
from model.lora_cache import LoraCache
from model.tokens.tokenizer import Tokenizer
from scheduler.cohort import CohortKey
from scheduler.loop import StepLoop
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter

_WEIGHTS = "adapter_model.safetensors"
_MAX_READERS = 2
"""Files read at once; more would take the processors from the steps and be no faster."""
_MAX_BUILDERS = 1
"""Stacks built at once, for the same reason."""


class ModelAdapters:
    """The adapters of one model."""

    def __init__(self, base: BaseWeights, tokenizer: Tokenizer, chat_template: str | None, cache: LoraCache) -> None:
        """`tokenizer` is the base model's; `chat_template` is the operator's, and goes before any adapter's."""
        self._base = base
        self._tokenizer = tokenizer
        self._tokenizers = AdapterTokenizers(tokenizer, chat_template)
        self.cache = cache

    def load_now(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        """Load an adapter while no steps run. Raises AdapterError."""
        adapter, resident = self.read(entry, load_id)
        self.cache.add(adapter)
        return resident

    def read(self, entry: AdapterEntry, load_id: int) -> tuple[Adapter, ResidentAdapter]:
        """Read an adapter's files. Raises AdapterError, which names the adapter. Works on any thread."""
        started_s = time.monotonic()
        path = Path(entry.path)
        try:
            adapter = load_adapter(path, load_id, entry.name, self._base)
            vocab_size = max(self._tokenizer.vocab_size, adapter.vocabulary_end)
            tokenizer = self._tokenizers.read(path, vocab_size) if path.is_dir() else None
        except (AdapterError, OSError, MemoryError) as error:
            reason = str(error) or "there is no memory for it"
            raise AdapterError(f"the adapter {entry.name!r} cannot be loaded: {reason}") from error
        return adapter, ResidentAdapter(
            id=adapter.id,
            name=entry.name,
            path=entry.path,
            num_bytes=adapter.num_bytes,
            task_name=adapter.task_name,
            prompt_prefix=adapter.prompt_prefix,
            invocation_tokens=adapter.invocation_tokens,
            tokenizer=tokenizer,
            vocabulary_end=adapter.vocabulary_end,
            load_s=time.monotonic() - started_s,
        )

    def loader(self, loop: StepLoop) -> "StepLoader":
        """Return the loader for a model whose steps `loop` runs."""
        return StepLoader(self, loop)


class StepLoader:
    """Loads and drops adapters while steps run. An AdapterLoader."""

    def __init__(self, adapters: ModelAdapters, loop: StepLoop) -> None:
        self._adapters = adapters
        self._loop = loop
        self._readers = asyncio.Semaphore(_MAX_READERS)
        self._builders = asyncio.Semaphore(_MAX_BUILDERS)

    def estimate_bytes(self, entry: AdapterEntry) -> int:
        """Return the size of the adapter's file: tensors stay as they are stored, quantised ones apart. 0 where there
        is none; reading it says why.
        """
        path = Path(entry.path)
        try:
            return (path / _WEIGHTS if path.is_dir() else path).stat().st_size
        except OSError:
            return 0

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        """Read an adapter and make it available to the steps. Raises AdapterError, or ShuttingDown."""
        async with self._readers:
            adapter, resident = await asyncio.to_thread(self._adapters.read, entry, load_id)
        await self._loop.between_steps(partial(self._adapters.cache.add, adapter))
        return resident

    def is_prepared(self, key: CohortKey) -> bool:
        """Return whether steps under a key can begin at once."""
        return self._adapters.cache.has(key)

    async def prepare(self, key: CohortKey) -> None:
        """Build the stack of a key on a thread of its own, where it is not there, so that no step has to.

        The caller holds its adapters in memory. Cancelling the caller is harmless, whatever becomes of them then.
        """
        async with self._builders:
            if not self.is_prepared(key):
                await asyncio.to_thread(self._adapters.cache.get, key)

    async def drop(self, resident: ResidentAdapter) -> None:
        """Free an adapter and all that was computed from it. Raises ShuttingDown."""
        await self._loop.between_steps(partial(self._adapters.cache.drop, resident.id.load_id))
