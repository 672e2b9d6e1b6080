"""A few of the fuzzers' files for each reader; `make fuzz` tries as many as there is time for."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model.adapters.files import AdapterError, load_adapter
from tests.model.fuzz import READERS, Fuzzer
from tests.model.fuzz_property import MAX_MESSAGE, TooSlow, time_and_memory_limit

pytestmark = [
    # What PEFT says while the sound adapters are made.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    # What Python's own parser says of expressions such as [[a]].
    pytest.mark.filterwarnings("ignore:Possible (nested set|set difference):FutureWarning"),
]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for tiny models threads are in the way
    yield Fuzzer(tmp_path_factory.mktemp("fuzz"))
    torch.set_num_threads(num_threads)


def test_the_adapters_that_are_damaged_are_sound(fuzzer: Fuzzer) -> None:
    """Otherwise everything would be refused for the same reason."""
    for path, target in fuzzer.write_seeds():
        load_adapter(path, 0, "sound", target.weights)


@pytest.mark.parametrize("reader", READERS)
def test_any_file_loads_whole_or_is_refused_by_name(fuzzer: Fuzzer, reader: str) -> None:
    fuzzer.run(reader, number=20, examples=150)
    tally = fuzzer.tallies[reader]
    assert tally.loaded > 5, "hardly any file gets past the first checks"
    assert len(tally.refusals) > 20, "hardly any check is reached"


def test_what_takes_too_long_or_too_much_is_noticed() -> None:
    with pytest.raises(TooSlow), time_and_memory_limit(seconds=0.05):
        next(number for number in itertools.count() if number < 0)
    with pytest.raises((MemoryError, RuntimeError)), time_and_memory_limit(num_bytes=1 << 20):
        bytearray(1 << 30)


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(fuzzer: Fuzzer, tmp_path: Path) -> None:
    weights = fuzzer.targets[0].weights
    os.mkfifo(tmp_path / "adapter_config.json")
    os.mkfifo(tmp_path / "a.gguf")
    for path in (tmp_path, tmp_path / "a.gguf"):
        with time_and_memory_limit(), pytest.raises(AdapterError):
            load_adapter(path, 0, "pipe", weights)


def test_a_refusal_can_be_shown_whatever_it_names() -> None:
    message = str(AdapterError(f"tensor 'a\n\ud800\x00{'x' * 10_000}' is of no known kind"))
    assert message.startswith(r"tensor 'a\n\ud800\x00xxx")
    assert len(message) <= MAX_MESSAGE
