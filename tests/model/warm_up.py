"""A process of its own for tests: print which kernels are compiled or loaded after a runner has warmed up.

python -m tests.model.warm_up MODEL DTYPE [DTYPE ...]
"""

import gc
import sys
from pathlib import Path

import torch
from numba.core.dispatcher import Dispatcher

from model.adapters.adapter import Adapter, LoraDelta
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.kv_cache import KVCache
from model.language_model import load_language_model
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from scheduler.batch import Batch, Row, RowFault, SamplerChain, SamplingParams
from scheduler.cohort import BASE, AdapterId, CohortKey, cohort_key

ADAPTER = AdapterId(0, "digest")
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(top_k=0, top_p=1.0, min_p=0.0, num_logprobs=5),
    SamplingParams(top_k=0, top_p=0.9, num_logprobs=200),
    SamplingParams(repeat_penalty=1.1, logit_bias=((3, 1.5),)),
    SamplingParams(chain=SamplerChain(dry_multiplier=1.0, typical_p=0.9)),
)


def loaded_kernels() -> set[tuple[str, str]]:
    """Return the kernels that can be called without a wait, with what they are compiled for."""
    kernels = (made for made in gc.get_objects() if isinstance(made, Dispatcher))
    return {(kernel.py_func.__name__, str(signature)) for kernel in kernels for signature in kernel.signatures}


def make_runner(path: Path, dtype: str) -> ModelRunner:
    """Make a runner with an adapter on all modules of the model at `path`."""
    checkpoint = load_checkpoint(path)
    backend = choose_backend("cpu", dtype, checkpoint)
    decoder = load_language_model(checkpoint.config, checkpoint.tensors, backend)
    deltas = {
        module: LoraDelta(torch.randn(2, in_features), torch.randn(out_features, 2), factor=0.01)
        for module, (out_features, in_features) in decoder.module_shapes.items()
    }
    adapters = [Adapter(ADAPTER, "a", "a", "peft", deltas, 2.0, "", "")]
    cache = LoraCache(adapters, decoder.adaptable, backend, max_bytes=1 << 20)
    return ModelRunner(decoder, KVCache(checkpoint.config, 2 * len(SAMPLINGS), backend), cache)


def serve(runner: ModelRunner, key: CohortKey) -> None:
    """Run prompts in two chunks, then a step of single tokens: what each needs that follows a warm-up."""
    for start, count in ((0, 7), (7, 10), (17, 1)):
        rows = tuple(
            Row(i, tuple(range(count)), start, (2 * i, 2 * i + 1), sampling, history=(1, 2, 3))
            for i, sampling in enumerate(SAMPLINGS)
        )
        outcomes = runner.execute(Batch(start, key, rows)).samples
        assert not any(isinstance(outcome, RowFault) for outcome in outcomes), outcomes


def main() -> None:
    path, *dtypes = sys.argv[1:]
    for dtype in dtypes:
        runner = make_runner(Path(path), dtype)
        runner.warm_up()
        before = loaded_kernels()
        serve(runner, BASE)
        serve(runner, cohort_key([(ADAPTER, 1.0)]))
        for name, signature in sorted(loaded_kernels() - before):
            print(f"{dtype}: {name} {signature}")


if __name__ == "__main__":
    main()
