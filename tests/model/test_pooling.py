"""Embeddings against transformers' and PEFT's hidden states; their bits in any company, and however prompts are cut."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from peft import LoraConfig
from transformers import PreTrainedModel

from model.adapters.adapter import Adapter
from model.adapters.files import load_adapter
from model.backend import choose_backend
from model.checkpoint.config import CheckpointError
from model.checkpoint.weights import load_checkpoint
from model.kv_cache import KVCache
from model.language_model import LanguageModel, load_language_model
from model.lora_cache import LoraCache
from model.pooling import add_states, embedding, stated_pooling, wanted_tokens
from model.runner import ModelRunner
from scheduler.batch import BLOCK_SIZE, Batch, Pooling, Row, SamplingParams
from scheduler.cohort import CohortKey, cohort_key
from tests.model.adapter_makers import ALL_LINEAR, attach, base_weights, make_peft_adapter
from tests.model.tiny import make_model, write_gguf

Floats = NDArray[np.float32]
PROMPT = tuple(range(10, 50))


def runner_of(model: LanguageModel, *adapters: Adapter) -> ModelRunner:
    cache = LoraCache(adapters, model.adaptable, model.backend, max_bytes=1 << 24)
    return ModelRunner(model, KVCache(model.config, 16, model.backend), cache)


def on_cpu(path: Path, dtype: str) -> LanguageModel:
    checkpoint = load_checkpoint(path)
    return load_language_model(checkpoint.config, checkpoint.tensors, choose_backend("cpu", dtype, checkpoint))


def embed(
    runner: ModelRunner,
    pooling: Pooling,
    *,
    chunks: Sequence[int] = (len(PROMPT),),
    key: CohortKey = (),
    neighbours: Sequence[Row] = (),
) -> Floats:
    """Compute PROMPT in chunks, each step with the same neighbours, and return its embedding."""
    start, pooled = 0, b""
    for count in chunks:
        own = Row(0, PROMPT[start : start + count], start, (3, 1, 2), None, pooling=pooling, pooled=pooled)
        rows = (*neighbours[:1], own, *neighbours[1:])
        [pooled] = [each.content for each in runner.execute(Batch(0, key, rows)).pooled if each.request_id == 0]
        start += count
    return embedding(pooling, pooled, len(PROMPT))


def oracle_states(model: torch.nn.Module) -> Floats:
    with torch.no_grad():
        states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1][0]
    array: Floats = states.numpy()
    return array


def pooled_states(states: Floats, pooling: Pooling) -> Floats:
    match pooling:
        case Pooling.NONE:
            return states
        case Pooling.MEAN:
            mean: Floats = states.mean(0, keepdims=True)
            return mean
        case Pooling.CLS:
            return states[:1]
        case Pooling.LAST:
            return states[-1:]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    path = tmp_path_factory.mktemp("llama")
    return path, make_model("llama", path)


@pytest.mark.parametrize("pooling", Pooling)
def test_states_are_those_of_transformers(llama: tuple[Path, PreTrainedModel], pooling: Pooling) -> None:
    path, oracle = llama
    got = embed(runner_of(on_cpu(path, "float32")), pooling, chunks=(17, 3, 20))
    np.testing.assert_allclose(got, pooled_states(oracle_states(oracle), pooling), atol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "qwen3moe"])
def test_other_families_end_with_their_own_norm(family: str, tmp_path: Path) -> None:
    oracle = make_model(family, tmp_path)
    got = embed(runner_of(on_cpu(tmp_path, "float32")), Pooling.MEAN)
    np.testing.assert_allclose(got[0], oracle_states(oracle).mean(0), atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_with_an_adapter_they_are_pefts(llama: tuple[Path, PreTrainedModel], tmp_path: Path) -> None:
    path, oracle = llama
    files = make_peft_adapter(oracle, tmp_path, LoraConfig(r=4, lora_alpha=6, target_modules=list(ALL_LINEAR)))
    adapter = load_adapter(files, 0, "a", base_weights(path))
    runner, key = runner_of(on_cpu(path, "float32"), adapter), cohort_key([(adapter.id, 1.0)])
    adapted, base = oracle_states(attach(oracle, {"a": files})), oracle_states(oracle)
    assert np.abs(adapted.mean(0) - base.mean(0)).max() > 0.1
    np.testing.assert_allclose(embed(runner, Pooling.MEAN, key=key)[0], adapted.mean(0), atol=2e-4)
    np.testing.assert_allclose(embed(runner, Pooling.LAST, key=key)[0], adapted[-1], atol=2e-4)
    np.testing.assert_allclose(embed(runner, Pooling.MEAN)[0], base.mean(0), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_an_embedding_has_the_same_bits_in_any_company_and_cut(dtype: str, tmp_path: Path) -> None:
    oracle = make_model("llama", tmp_path / "hf")
    write_gguf(oracle, tmp_path / "model.gguf", "Q4_1" if dtype == "int8" else "F32")
    try:
        runner = runner_of(on_cpu(tmp_path / "model.gguf", dtype))
    except ValueError as error:
        pytest.skip(str(error))
    greedy = SamplingParams(temperature=0.0, num_logprobs=2)
    neighbours = (
        Row(1, (7,), 20, (4, 5), greedy, is_decode=True),
        Row(2, (8, 9, 10), 0, (6,), None, pooling=Pooling.LAST),
        Row(3, (8, 9), 0, (7,), greedy),
        Row(4, (8, 9), 3, (8,), None),
    )
    for pooling in Pooling:
        alone = embed(runner, pooling)
        assert np.array_equal(embed(runner, pooling, chunks=(1, 15, 16, 8)), alone)
        assert np.array_equal(embed(runner, pooling, chunks=(39, 1), neighbours=neighbours), alone)
    samples = runner.execute(Batch(0, (), neighbours)).samples
    mixed = (Row(0, PROMPT, 0, (3, 1, 2), None, pooling=Pooling.NONE), *neighbours)
    assert runner.execute(Batch(0, (), mixed)).samples == samples


def row(pooling: Pooling | None, start: int, count: int) -> Row:
    return Row(0, (5,) * count, start, tuple(range(-(-(start + count) // BLOCK_SIZE))), None, pooling=pooling)


def test_a_row_wants_the_states_that_its_pooling_needs() -> None:
    assert list(wanted_tokens(row(None, 0, 3))) == []
    assert list(wanted_tokens(row(Pooling.NONE, 5, 3))) == list(wanted_tokens(row(Pooling.MEAN, 5, 3))) == [0, 1, 2]
    assert list(wanted_tokens(row(Pooling.CLS, 0, 3))) == [0]
    assert list(wanted_tokens(row(Pooling.CLS, 3, 3))) == []
    assert list(wanted_tokens(row(Pooling.LAST, 3, 3))) == [2]


states = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(-(2**20), 2**20, width=32)
)


@settings(deadline=None)
@given(states, st.data())
def test_the_cut_changes_no_bit_of_what_is_pooled(states: Floats, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(states)))
    for pooling in Pooling:
        pooled = b""
        for start, end in ((0, cut), (cut, len(states))):
            if start < end:
                wanted = [start + i for i in wanted_tokens(row(pooling, start, end - start))]
                pooled = add_states(pooling, pooled, states[wanted])
        got = embedding(pooling, pooled, len(states))
        assert got.dtype == np.float32
        if pooling is Pooling.MEAN:
            np.testing.assert_allclose(got[0], states.astype(np.float64).mean(0), rtol=1e-6, atol=1e-30)
        else:
            assert np.array_equal(got, pooled_states(states, pooling))


def test_a_gguf_file_states_its_pooling_by_number(tmp_path: Path) -> None:
    for kind, wanted in ((0, Pooling.NONE), (1, Pooling.MEAN), (2, Pooling.CLS), (3, Pooling.LAST), (4, None)):
        metadata = {"general.architecture": "qwen3", "qwen3.pooling_type": kind}
        assert stated_pooling(tmp_path, metadata) is wanted
    assert stated_pooling(tmp_path, {"general.architecture": "qwen3", "llama.pooling_type": 1}) is None


@pytest.mark.parametrize(
    ("modes", "wanted"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN),
        ({"pooling_mode_cls_token": True}, Pooling.CLS),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, Pooling.LAST),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
    ],
)
def test_a_directory_states_it_as_sentence_transformers_does(
    modes: dict[str, bool], wanted: Pooling | None, tmp_path: Path
) -> None:
    assert stated_pooling(tmp_path, None) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert stated_pooling(tmp_path, None) is wanted


def test_a_damaged_statement_is_named(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": 3}')
    with pytest.raises(CheckpointError, match="pooling_mode_mean_tokens is 3; true or false is needed"):
        stated_pooling(tmp_path, None)
