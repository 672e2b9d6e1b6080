"""Real adapter files into the memory of a tiny model, and out of it again, while steps run."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from model.adapters.adapter import BaseWeights
from model.adapters.tensors import AdapterError
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.decoder import Decoder
from model.lora import LoraStack, stack_adapters
from model.lora_cache import LoraCache
from model.tokens.tokenizer import load_tokenizer
from scheduler.core import Scheduler
from scheduler.errors import ShuttingDown
from scheduler.loop import StepLoop
from server.adapters.catalog import AdapterEntry, AdapterSource
from server.adapters.loader import ModelAdapters
from tests.model.adapter_makers import make_peft_adapter
from tests.model.tiny import make_model
from tests.scheduler.builders import make_limits, make_request
from tests.scheduler.loop_models import GatedModel
from tests.server.fakes import TIMEOUT_S

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in `base`, and an adapter for it in `tone`."""
    path = tmp_path_factory.mktemp("loader")
    base = make_model("llama", path / "base")
    make_peft_adapter(base, path / "tone", LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    return path


@pytest.fixture
def adapters(folder: Path) -> ModelAdapters:
    """The adapters of the tiny model: none yet."""
    checkpoint = load_checkpoint(folder / "base")
    backend = choose_backend("cpu", "float32")
    decoder = Decoder(checkpoint.config, checkpoint.tensors, backend)
    base = BaseWeights(checkpoint.config, decoder.module_shapes, checkpoint.tensors)
    cache = LoraCache((), decoder.adaptable, backend, max_bytes=2**20)
    return ModelAdapters(base, load_tokenizer(checkpoint), None, cache)


def entry(path: Path) -> AdapterEntry:
    return AdapterEntry(0, path.name, str(path), False, AdapterSource.FOLDER)


@asynccontextmanager
async def stepping() -> AsyncIterator[tuple[StepLoop, GatedModel]]:
    model = GatedModel()
    loop = StepLoop(Scheduler(make_limits()), model)
    running = asyncio.create_task(loop.run())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield loop, model
    finally:
        model.open()
        await loop.drain(grace_s=0)
        await running


def test_loaded_adapter_can_be_used_by_steps_and_is_described(adapters: ModelAdapters, folder: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, _):
            resident = await adapters.loader(loop).load(entry(folder / "tone"), 7)
            assert (resident.id.load_id, resident.name, resident.path) == (7, "tone", str(folder / "tone"))
            assert resident.num_bytes > 0
            assert resident.load_s > 0
            stack = adapters.cache.get(((resident.id, 0.5),))
            assert stack is not None
            assert stack.change("layers.0.down") is not None

    asyncio.run(main())


def test_adapter_comes_and_goes_between_steps(adapters: ModelAdapters, folder: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, model):
            loader = adapters.loader(loop)
            request = make_request(0, max_new_tokens=3)
            model.model.expect(request)
            loop.submit(request)
            await model.wait_for_step()
            load = asyncio.create_task(loader.load(entry(folder / "tone"), 7))
            while loop._worker._work_queue.empty():  # the file is being read
                await asyncio.wait([load], timeout=0.01)
            assert not load.done()
            model.let_go()
            resident = await load
            await model.wait_for_step()
            drop = asyncio.create_task(loader.drop(resident))
            await asyncio.wait([drop], timeout=0)
            assert adapters.cache.get(((resident.id, 1.0),)) is not None
            model.let_go()
            await drop
            with pytest.raises(KeyError):
                adapters.cache.get(((resident.id, 1.0),))

    asyncio.run(main())


def test_memory_of_a_dropped_adapter_returns(adapters: ModelAdapters, folder: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, _):
            loader = adapters.loader(loop)
            resident = await loader.load(entry(folder / "tone"), 7)
            stack = adapters.cache.get(((resident.id, 1.0),))
            adapter = adapters.cache._adapters[resident.id]
            tensors = [weakref.ref(delta.a) for delta in adapter.deltas.values()]
            stacks = weakref.ref(stack)
            del stack, adapter
            await loader.drop(resident)
            gc.collect()
            assert [tensor() for tensor in tensors] == [None] * len(tensors)
            assert stacks() is None
            assert adapters.cache.num_bytes == 0

    asyncio.run(main())


def test_adapter_that_cannot_be_loaded_is_named_and_leaves_nothing(adapters: ModelAdapters, tmp_path: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, _):
            (tmp_path / "broken").mkdir()
            (tmp_path / "broken" / "adapter_config.json").write_text("{}")
            for name in ("broken", "missing"):
                with pytest.raises(AdapterError, match=f"the adapter '{name}' cannot be loaded"):
                    await adapters.loader(loop).load(entry(tmp_path / name), 0)
            assert not adapters.cache._adapters

    asyncio.run(main())


def test_size_is_guessed_from_the_file(adapters: ModelAdapters, folder: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, _):
            loader = adapters.loader(loop)
            guess = loader.estimate_bytes(entry(folder / "tone"))
            resident = await loader.load(entry(folder / "tone"), 0)
            assert resident.num_bytes <= guess < 2 * resident.num_bytes
            (tmp_path / "a.gguf").write_bytes(b"x" * 123)
            assert loader.estimate_bytes(entry(tmp_path / "a.gguf")) == 123
            assert loader.estimate_bytes(entry(tmp_path / "missing")) == 0

    asyncio.run(main())


def test_load_that_ends_after_the_steps_have_ended_says_so(adapters: ModelAdapters, folder: Path) -> None:
    async def main() -> None:
        async with stepping() as (loop, _):
            pass
        with pytest.raises(ShuttingDown):
            await adapters.loader(loop).load(entry(folder / "tone"), 0)
        assert not adapters.cache._adapters

    asyncio.run(main())


def test_first_adapters_are_loaded_without_steps(adapters: ModelAdapters, folder: Path) -> None:
    resident = adapters.load_now(entry(folder / "tone"), 3)
    assert adapters.cache.get(((resident.id, 1.0),)) is not None


class HeldBuilds:
    """Builds of stacks that end when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num = 0
        self.begun, self.may_end = threading.Event(), threading.Event()
        monkeypatch.setattr("model.lora_cache.stack_adapters", self._build)

    def _build(self, *parts: Any) -> LoraStack:
        self.num += 1
        self.begun.set()
        assert self.may_end.wait(TIMEOUT_S)
        return stack_adapters(*parts)


def test_a_stack_is_built_once_and_waits_for_no_step(
    adapters: ModelAdapters, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        builds = HeldBuilds(monkeypatch)
        async with stepping() as (loop, model):
            loader = adapters.loader(loop)
            resident = await loader.load(entry(folder / "tone"), 7)
            key = ((resident.id, 0.5),)
            request = make_request(0, max_new_tokens=1)
            model.model.expect(request)
            loop.submit(request)
            await model.wait_for_step()
            builds.may_end.set()
            assert not loader.is_prepared(key)
            await asyncio.gather(loader.prepare(key), loader.prepare(key))
            assert loader.is_prepared(key)
            assert builds.num == 1

    asyncio.run(main())


def test_a_stack_whose_asker_left_is_not_kept_for_an_adapter_that_went(
    adapters: ModelAdapters, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        builds = HeldBuilds(monkeypatch)
        async with stepping() as (loop, _):
            loader = adapters.loader(loop)
            resident = await loader.load(entry(folder / "tone"), 7)
            preparing = asyncio.create_task(loader.prepare(((resident.id, 0.5),)))
            await asyncio.to_thread(builds.begun.wait, TIMEOUT_S)
            preparing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await preparing
            await loader.drop(resident)
            builds.may_end.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert adapters.cache.num_bytes == 0

    asyncio.run(main())
