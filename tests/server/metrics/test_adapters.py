"""Series of adapters over real HTTP: memory, uses and waits are told apart; an adapter that has left has no series."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.samples import Sample

from model.adapters.tensors import AdapterError
from server.adapters.catalog import AdapterEntry
from server.adapters.resident import ResidentAdapter
from server.metrics.adapters import AdapterTotals
from tests.server.fakes import FakeExecutor, FakeLoader, Turnstile, fake_engine, fake_resident, fake_settings
from tests.server.live import LiveServer, until
from tests.server.metrics.test_metrics import scrape, value


class Folder:
    """A server with one pinned adapter, three in a folder, and memory for two."""

    def __init__(self, folder: Path) -> None:
        for name in ("a", "b", "broken"):
            (folder / f"{name}.gguf").touch()
        self.turnstile = Turnstile()
        self.may_load = threading.Event()
        self.may_load.set()
        settings = fake_settings(1).model_copy(
            update={"lora_dir": folder, "max_loras": 2, "lora_init_without_apply": True}
        )
        executor = FakeExecutor(turnstile=self.turnstile)
        self.loader = _Loader(self.may_load)
        self.server = LiveServer(lambda _: fake_engine(executor, settings, loader=self.loader), settings)


class _Loader(FakeLoader):
    """Waits before it loads, and cannot load what is broken."""

    def __init__(self, may_load: threading.Event) -> None:
        super().__init__(_make)
        self._may_load = may_load

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        await asyncio.to_thread(self._may_load.wait, 20)
        return await super().load(entry, load_id)


def _make(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
    if entry.name == "broken":
        raise AdapterError("the adapter 'broken' cannot be loaded: it is empty")
    return fake_resident(entry, load_id)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    with folder.server:
        yield folder
        folder.may_load.set()
        folder.turnstile.open()


@pytest.fixture
def client(folder: Folder) -> Iterator[httpx.Client]:
    with folder.server.client() as opened:
        yield opened


def ask(client: httpx.Client, model: str, num_tokens: int = 2) -> int:
    body = {"prompt": "x", "model": model, "n_predict": num_tokens}
    return client.post("/completion", json=body).status_code


def labels(samples: list[Sample], name: str) -> set[str]:
    """The adapters that have a series in a family."""
    return {sample.labels["adapter"] for sample in samples if sample.name == name}


def test_loads_evictions_and_failures_are_counted(folder: Folder, client: httpx.Client) -> None:
    folder.turnstile.open()
    assert [ask(client, name) for name in ("a", "adapter0", "b", "a", "broken")] == [200, 200, 200, 200, 500]
    samples = scrape(client)
    assert value(samples, "cohort_adapter_loads_total") == 3
    assert value(samples, "cohort_adapter_load_seconds_count") == 3
    assert value(samples, "cohort_adapter_load_failures_total") == 1
    assert value(samples, "cohort_adapter_evictions_total") == 3
    assert value(samples, "cohort_adapters_pinned") == 1


def test_memory_is_measured(folder: Folder, client: httpx.Client) -> None:
    folder.turnstile.open()
    before = scrape(client)
    assert (value(before, "cohort_adapters_resident"), value(before, "cohort_adapters_resident_bytes")) == (1, 100)
    ask(client, "a")
    after = scrape(client)
    assert (value(after, "cohort_adapters_resident"), value(after, "cohort_adapters_resident_bytes")) == (2, 200)
    [info] = [sample for sample in after if sample.name == "vllm:lora_requests_info"]
    assert info.labels["max_lora"] == "2"


def test_resident_running_and_waiting_are_three_sets(folder: Folder, client: httpx.Client) -> None:
    folder.turnstile.open()
    ask(client, "a", 1)
    folder.may_load.clear()
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(ask, client, "b")
        until(lambda: folder.server.engine.adapters.residency.num_waiting == 1)
        with folder.server.client() as other:
            samples = scrape(other)
        folder.may_load.set()
        assert asking.result() == 200
    assert value(samples, "cohort_requests_waiting_for_adapter") == 1
    assert value(samples, "cohort_requests_waiting") == 0
    assert value(samples, "cohort_adapter_requests_waiting", adapter="b") == 1
    assert value(samples, "cohort_adapter_requests_running", adapter="b") == 0
    assert "b" not in labels(samples, "cohort_adapter_loaded")
    [info] = [sample for sample in samples if sample.name == "vllm:lora_requests_info"]
    assert (info.labels["running_lora_adapters"], info.labels["waiting_lora_adapters"]) == ("", "b")


def test_references_are_those_of_requests_and_none_when_idle(folder: Folder, client: httpx.Client) -> None:
    body = {"prompt": "x", "lora": [{"name": "a", "scale": 1}, {"id": 0, "scale": 0.5}], "stream": True, "n_cmpl": 2}
    with client.stream("POST", "/completion", json=body), folder.server.client() as other:
        assert value(scrape(other), "cohort_adapter_references") == 2
    until(lambda: folder.server.is_idle)
    until(lambda: value(scrape(client), "cohort_adapter_references") == 0)


def test_an_adapter_that_left_has_no_series_and_its_totals_go_on_when_it_comes_back(
    folder: Folder, client: httpx.Client
) -> None:
    folder.turnstile.open()
    families = ("cohort_adapter_loaded", "cohort_adapter_requests_running", "cohort_adapter_generated_tokens_total")
    ask(client, "a", 3)
    samples = scrape(client)
    assert value(samples, "cohort_adapter_generated_tokens_total", adapter="a") == 3
    ask(client, "b", 1)
    samples = scrape(client)
    for family in families:
        assert labels(samples, family) == {"adapter0", "b"}
    ask(client, "a", 2)
    samples = scrape(client)
    assert value(samples, "cohort_adapter_generated_tokens_total", adapter="a") == 5
    assert value(samples, "cohort_adapter_requests_finished_total", adapter="a") == 2
    for family in families:
        assert labels(samples, family) == {"adapter0", "a"}


def test_the_totals_that_are_kept_are_bounded() -> None:
    totals = AdapterTotals()
    for number in range(10_000):
        totals.count(f"step-{number}", "generated_tokens")
        totals.trim(["step-0"])
    kept = [number for number in range(10_000) if totals.get(f"step-{number}", "generated_tokens")]
    assert kept == [0, *range(10_000 - 8191, 10_000)]
