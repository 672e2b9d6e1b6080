"""From batches to samples: what a row's integers become, and whose logits its sample is drawn from."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter, LoraDelta
from model.backend import choose_backend
from model.checkpoint.weights import load_checkpoint
from model.cpu.jit import compiles_for
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora_cache import LoraCache
from model.runner import ModelRunner, step_tensors
from scheduler.batch import Batch, Row, SamplingParams
from scheduler.cohort import AdapterId
from tests.model.decoding import generate
from tests.model.tiny import make_model, write_gguf

GREEDY = SamplingParams(temperature=0.0)
ADAPTER = AdapterId(0, "digest")


def test_a_mixed_step_becomes_flat_tensors() -> None:
    rows = (
        Row(4, token_ids=(50,), start=16, block_table=(9, 2, 7), sampling=GREEDY),
        Row(5, token_ids=(60, 61, 62), start=15, block_table=(1, 8), sampling=None),
        Row(6, token_ids=(70, 71), start=0, block_table=(5,), sampling=GREEDY),
    )
    token_ids, step, wanted = step_tensors(rows, torch.device("cpu"))
    assert token_ids.tolist() == [50, 60, 61, 62, 70, 71]
    assert wanted.logits.tolist() == [0, 5]
    assert wanted.states.tolist() == []
    assert step.query_starts.tolist() == [0, 1, 4, 6]
    assert step.context_lens.tolist() == [17, 18, 2]
    assert step.block_tables.tolist() == [[9, 2], [1, 8], [5, 0]]
    assert (step.max_query, step.max_context) == (3, 18)
    assert step.positions.tolist() == [16, 15, 16, 17, 0, 1]
    assert step.slots.tolist() == [2 * 16, 1 * 16 + 15, 8 * 16, 8 * 16 + 1, 5 * 16, 5 * 16 + 1]
    for indices in (token_ids, wanted.logits, wanted.states, step.slots, step.positions):
        assert indices.dtype == torch.int64
    for narrow in (step.query_starts, step.context_lens, step.block_tables):
        assert narrow.dtype == torch.int32
        assert narrow.is_contiguous()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, PreTrainedModel]:
    path: Path = tmp_path_factory.mktemp("llama")
    oracle = make_model("llama", path)
    checkpoint = load_checkpoint(path)
    return Decoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "float32")), oracle


def new_runner(decoder: Decoder, num_blocks: int = 12) -> ModelRunner:
    generator = torch.Generator().manual_seed(1)
    deltas = {
        module: LoraDelta(
            torch.randn(2, in_features, generator=generator) * in_features**-0.5,
            torch.randn(out_features, 2, generator=generator),
            factor=1.0,
        )
        for module, (out_features, in_features) in decoder.module_shapes.items()
    }
    adapter = Adapter(ADAPTER, "a", "a", "peft", deltas, 2.0, "", "")
    cache = LoraCache([adapter], decoder.adaptable, decoder.backend, max_bytes=1 << 20)
    return ModelRunner(decoder, KVCache(decoder.config, num_blocks, decoder.backend), cache)


PROMPTS = [[5, 80, 3, 99, 41, 7, 200, 31], [17, 17, 4], [150, 2, 9, 33, 60, 8, 1, 1, 77, 240, 19]]
TABLES = [(11, 0), (9, 2), (7, 4)]


@pytest.mark.parametrize("chunk", [100, 3])
def test_greedy_tokens_are_those_of_transformers(tiny: tuple[Decoder, PreTrainedModel], chunk: int) -> None:
    decoder, oracle = tiny
    got = generate(new_runner(decoder), PROMPTS, TABLES, num_new=16, chunk=chunk)
    for prompt, tokens in zip(PROMPTS, got, strict=True):
        inputs = torch.tensor([prompt])
        want = oracle.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens == want[0, len(prompt) :].tolist()


def test_rows_without_sampling_get_no_sample(tiny: tuple[Decoder, PreTrainedModel]) -> None:
    rows = (
        Row(8, (1, 2), 0, (3,), sampling=None),
        Row(7, (1, 2), 0, (2,), sampling=GREEDY),
        Row(9, (1, 2), 0, (1,), sampling=None),
        Row(3, (4,), 0, (0,), sampling=GREEDY),
    )
    runner = new_runner(tiny[0])
    assert [sample.request_id for sample in runner.execute(Batch(0, (), rows)).samples] == [7, 3]
    assert runner.execute(Batch(1, (), rows[:1])).samples == ()


def test_the_key_of_the_batch_chooses_the_adapters(tiny: tuple[Decoder, PreTrainedModel]) -> None:
    runner = new_runner(tiny[0])
    base = generate(runner, PROMPTS, TABLES, num_new=8)
    adapted = generate(runner, PROMPTS, TABLES, num_new=8, key=((ADAPTER, 1.0),))
    other_scale = generate(runner, PROMPTS, TABLES, num_new=8, key=((ADAPTER, -0.5),))
    assert len({str(tokens) for tokens in (base, adapted, other_scale)}) == 3
    assert generate(runner, PROMPTS, TABLES, num_new=8) == base
    assert generate(new_runner(tiny[0]), PROMPTS, TABLES, num_new=8, key=((ADAPTER, 1.0),)) == adapted


@pytest.mark.parametrize("num_blocks", [1, 12])
def test_warming_up_fits_any_cache(tiny: tuple[Decoder, PreTrainedModel], num_blocks: int) -> None:
    new_runner(tiny[0], num_blocks).warm_up()


def test_warming_up_leaves_no_trace(tiny: tuple[Decoder, PreTrainedModel]) -> None:
    warm = new_runner(tiny[0])
    warm.warm_up()
    assert generate(warm, PROMPTS, TABLES, num_new=8) == generate(new_runner(tiny[0]), PROMPTS, TABLES, num_new=8)


def test_after_warming_up_no_request_waits_for_a_kernel(tmp_path: Path) -> None:
    write_gguf(make_model("llama", tmp_path / "hf"), tmp_path / "model.gguf", "Q4_1")
    dtypes = ["float32", "bfloat16"] + (["int8"] if compiles_for("avx512vnni") else [])
    command = [sys.executable, "-m", "tests.model.warm_up", str(tmp_path / "model.gguf"), *dtypes]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr
