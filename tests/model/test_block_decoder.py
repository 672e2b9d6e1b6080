"""The decoder on integers against the reference on the same weights in float32; bits that no neighbour changes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from model.backend import choose_backend, reference_backend
from model.block_decoder import BlockDecoder
from model.checkpoint.weights import Checkpoint, load_checkpoint
from model.cpu.jit import compiles_for
from model.decoder import Decoder
from model.outputs import Wanted
from model.runner import step_tensors
from scheduler.batch import Row
from tests.model.decoding import assert_writes_its_own_slots, junk_cache, logits_of, scattered_tables, whole
from tests.model.tiny import VOCAB_SIZE, make_model, write_gguf

pytestmark = pytest.mark.skipif(not compiles_for("avx512vnni"), reason="the CPU has no AVX-512 VNNI")

MODELS = {
    "llama": ("llama", "Q4_1", False),
    "llama-tied": ("llama", "Q8_0", True),
    "mistral": ("mistral", "Q4_0", False),
    "smollm": ("smollm", "Q5_1", True),
    "qwen2": ("qwen2", "Q8_0", False),
    "qwen3": ("qwen3", "Q4_1", False),
    "gemma3": ("gemma3", "Q8_0", True),
}
"""Family, how its matrices are stored, and whether the head is tied."""
names = pytest.mark.parametrize("name", MODELS)
PROMPT_LENGTH = 45
"""Three blocks, the last one not full; longer than the windows of mistral and gemma3."""


def prompt(seed: int, length: int = PROMPT_LENGTH) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Checkpoint]:
    loaded = {}
    for name, (family, file_type, tied) in MODELS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        write_gguf(make_model(family, folder / "hf", tied=tied), folder / "model.gguf", file_type)
        loaded[name] = load_checkpoint(folder / "model.gguf")
    return loaded


def on_blocks(checkpoint: Checkpoint) -> BlockDecoder:
    return BlockDecoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "auto", checkpoint))


def on_reference(checkpoint: Checkpoint) -> Decoder:
    return Decoder(checkpoint.config, checkpoint.tensors, reference_backend())


def assert_near(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    assert got.dtype == torch.float32
    error = (got - wanted).abs()
    assert float(error.mean()) <= tolerance * float(wanted.abs().mean())
    assert float(error.max()) <= 2 * tolerance * float(wanted.abs().max())


@names
def test_logits_are_the_references_but_for_the_rounding_of_rows(
    checkpoints: Mapping[str, Checkpoint], name: str
) -> None:
    checkpoint = checkpoints[name]
    prompts = [prompt(1), prompt(2, 20)]
    schedule = [[7, 0], [9, 20], [1, 0], [20, 0], *[[1, 0]] * 8]
    reference = on_reference(checkpoint)
    got = logits_of(on_blocks(checkpoint), prompts, schedule)
    for tokens, logits in zip(prompts, got, strict=True):
        assert_near(logits, whole(reference, tokens, cache_dtype=torch.bfloat16), 5e-3)


@names
def test_a_token_has_the_same_bits_in_every_batch_and_cut(checkpoints: Mapping[str, Checkpoint], name: str) -> None:
    decoder = on_blocks(checkpoints[name])
    lengths = [1 + (7 * i) % 40 for i in range(32)]
    prompts = [prompt(10 + i, length) for i, length in enumerate(lengths)]
    alone = [whole(decoder, tokens) for tokens in prompts]
    for size in (2, 3, 5, 6, 7, 16, 17, 32):
        schedule = [[length - 1 for length in lengths[:size]], [1] * size]
        for i, got in enumerate(logits_of(decoder, prompts[:size], schedule)):
            assert torch.equal(got, alone[i]), (size, i)
    tokens = prompt(3)
    expected = whole(decoder, tokens)
    for cut in ([1] * PROMPT_LENGTH, [16, 16, 13], [44, 1], [3, 40, 2]):
        [got] = logits_of(decoder, [tokens], [[count] for count in cut], seed=len(cut))
        assert torch.equal(got, expected), cut


def test_the_number_of_threads_changes_no_bit(checkpoints: Mapping[str, Checkpoint]) -> None:
    decoder, tokens = on_blocks(checkpoints["gemma3"]), prompt(4)
    before = torch.get_num_threads()
    logits = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            logits.append(whole(decoder, tokens))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_weights_without_codes_are_quantised(tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    decoder = BlockDecoder(checkpoint.config, checkpoint.tensors, choose_backend("cpu", "int8", checkpoint))
    assert_near(whole(decoder, prompt(5)), whole(on_reference(checkpoint), prompt(5)), 0.03)


def test_returns_the_logits_of_the_asked_tokens_only(checkpoints: Mapping[str, Checkpoint]) -> None:
    decoder, tokens = on_blocks(checkpoints["llama"]), prompt(5, 20)
    expected = whole(decoder, tokens)
    token_ids, step, _ = step_tensors((Row(0, tuple(tokens), 0, (0, 1), sampling=None),), torch.device("cpu"))
    for asked in ([19], [3, 7], []):
        wanted = Wanted(torch.tensor(asked, dtype=torch.int64))
        got = decoder.forward(token_ids, step, wanted, junk_cache(decoder, 2), None).logits
        assert got.shape == (len(asked), VOCAB_SIZE)
        assert torch.equal(got, expected[asked])


def test_writes_its_own_slots_and_no_others(checkpoints: Mapping[str, Checkpoint]) -> None:
    assert_writes_its_own_slots(on_blocks(checkpoints["qwen3"]), prompt(6))


def test_a_row_of_nan_spoils_no_other(checkpoints: Mapping[str, Checkpoint]) -> None:
    decoder = on_blocks(checkpoints["llama"])
    num_blocks, tables = scattered_tables([20, 20])
    kv = junk_cache(decoder, num_blocks)
    alone = whole(decoder, prompt(7, 20))
    for layer in kv.keys:
        layer[list(tables[1])] = torch.nan
    rows = (
        Row(0, tuple(prompt(7, 20)), 0, tables[0], sampling=None),
        Row(1, (5,), 19, tables[1], sampling=None),
    )
    token_ids, step, _ = step_tensors(rows, torch.device("cpu"))
    logits = decoder.forward(token_ids, step, Wanted(torch.arange(21)), kv, None).logits
    assert torch.equal(logits[:20], alone)
    assert bool(logits[20].isnan().all())


def test_a_tied_head_is_the_embedding_itself(checkpoints: Mapping[str, Checkpoint]) -> None:
    tied, own = (on_blocks(checkpoints[name]) for name in ("llama-tied", "llama"))
    assert {id(weight) for weight in tied._base.kept} & {id(tied._embedding)}
    assert not {id(weight) for weight in own._base.kept} & {id(own._embedding)}
    assert tied._embedding.rows(np.array([3], np.int64)).shape == (1, 64)
