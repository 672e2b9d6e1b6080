"""What must hold for any adapter file whatsoever, damaged or hostile: it loads whole, or it is refused by name.

Loaded means that every LoRA matrix of the file is in the adapter and that a step under it either gives finite logits or
is refused by the sampler. Refused means AdapterError, with a message that names the file or something in it. No other
exception, in bounded time and memory.
"""

import contextlib
import math
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from model.adapters.adapter import Adapter
from model.adapters.files import AdapterError, load_adapter
from model.checkpoint.fields import printable
from model.checkpoint.gguf import read_gguf
from model.lora import stack_adapters
from model.sampling.sampler import sample
from scheduler.batch import Row, SamplingParams
from tests.model.decoding import whole
from tests.model.fuzz_bytes import DrawnFile
from tests.model.fuzz_corpus import Target

TIME_LIMIT_S = 10.0
MEMORY_LIMIT = 1 << 28
"""Bytes that one example may take beyond what the process has; the files have some hundred thousand."""
MAX_MESSAGE = 1000
PROMPT = (10, 20, 30)
_PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")


def outcome_of(path: Path, target: Target, file: DrawnFile) -> str:
    """Load the adapter at `path`, `file` the one part of it that was drawn. Return '' where it loads, else the
    refusal."""
    with time_and_memory_limit():
        try:
            adapter = load_adapter(path, 0, "fuzz", target.weights)
        except AdapterError as error:
            _check_message(str(error), path, file)
            return str(error)
        num_values = _num_values_of_gguf(path) if path.is_file() else file.num_values
        if num_values is not None:
            found = _num_values(adapter)
            assert found == num_values, f"the file has {num_values} values, the adapter {found}"
        _compute(adapter, target)
    return ""


def _check_message(message: str, path: Path, file: DrawnFile) -> None:
    assert len(message) <= MAX_MESSAGE, f"{len(message)} characters: {message[:200]}…"
    message.encode()  # a lone surrogate could not be sent to anybody
    known = {str(path), *_PEFT_FILES, *file.names}
    known |= {printable(name) for name in known}
    if any(name in message for name in known if name):
        return
    # Damage to bytes makes names that nobody has drawn, the empty one too.
    assert re.search("'[^']*'", message), f"names nothing: {message}"


def _num_values_of_gguf(path: Path) -> int:
    return sum(math.prod(tensor.shape) for tensor in read_gguf(path).tensors.values())


def _num_values(adapter: Adapter) -> int:
    halves = [half for delta in (*adapter.deltas.values(), adapter.embedding) if delta for half in (delta.a, delta.b)]
    tensors = {tensor.data_ptr(): tensor for tensor in (*halves, *adapter.norms.values())}  # gate and up may share A
    return sum(tensor.numel() for tensor in tensors.values())


@torch.inference_mode()
def _compute(adapter: Adapter, target: Target) -> None:
    decoder = target.decoder
    logits = whole(decoder, PROMPT, lora=stack_adapters([(adapter, 0.7)], decoder.adaptable, decoder.backend))
    row = Row(0, PROMPT, 0, (0,), SamplingParams(temperature=0.0))
    sample(logits[-1:], [row])


class TooSlow(BaseException):
    """An example that takes too long. Not an Exception, so that nothing takes it for its own."""


@contextlib.contextmanager
def time_and_memory_limit(seconds: float = TIME_LIMIT_S, num_bytes: int = MEMORY_LIMIT) -> Iterator[None]:
    """Raise TooSlow or MemoryError in what takes too long, or more memory than the process has and `num_bytes`."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlow(f"still busy after {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if (size := _address_space()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + num_bytes, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _address_space() -> int | None:
    """Return its bytes; None where the system does not tell, and so cannot limit them either."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else None
