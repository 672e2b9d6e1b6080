"""Checkpoints of every format hold transformers' own tensors; what is missing, damaged or odd is refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

from model.checkpoint.config import CheckpointError
from model.checkpoint.gguf import read_gguf
from model.checkpoint.weights import load_checkpoint
from tests.model.tiny import FAMILIES, GGUF_FILE_TYPES, gguf_tensors, make_model, state_of, write_gguf

# The largest, as a share of the largest value: half a step of the type's grid, and the rounding of the step itself.
QUANTISATION_ERROR = {
    "F32": 0.0,
    "F16": 2**-11,
    "BF16": 2**-8,
    "Q8_0": 0.005,
    "Q5_0": 0.065,
    "Q5_1": 0.035,
    "Q4_0": 0.13,
    "Q4_1": 0.07,
}


def edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_tensors(path: Path, changed: Mapping[str, torch.Tensor]) -> None:
    save_file({**load_file(path), **changed}, path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_model("llama", tmp_path)
    return tmp_path


@pytest.mark.parametrize("is_gguf", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_those_of_transformers(family: str, tied: bool, is_gguf: bool, tmp_path: Path) -> None:
    model = make_model(family, tmp_path, tied=tied, sharded=tied)
    if is_gguf:
        write_gguf(model, tmp_path / "m.gguf")
    checkpoint = load_checkpoint(tmp_path / "m.gguf" if is_gguf else tmp_path)
    wanted = state_of(model)
    assert set(checkpoint.tensors) == set(wanted)
    assert len(checkpoint.tensors) == len(wanted)
    for name, weight in wanted.items():
        found = checkpoint.tensors[name]
        # GGUF holds 1 + w of gemma's norms, in which w is rounded.
        assert torch.equal(found, weight) or (is_gguf and "norm" in name and torch.equal(found + 1, weight + 1)), name
    assert (checkpoint.format, checkpoint.file_type) == ("gguf" if is_gguf else "safetensors", "F32")
    assert checkpoint.num_parameters == sum(weight.numel() for weight in wanted.values())
    assert checkpoint.num_bytes == 4 * checkpoint.num_parameters
    assert checkpoint.eog_ids == {2}
    assert (checkpoint.gguf is not None) == is_gguf


@pytest.mark.parametrize("family", ["mixtral", "qwen3moe"])
def test_stacked_experts_are_taken_apart(family: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path / "stacked", stacked=True)
    make_model(family, tmp_path / "apart")
    checkpoints = [load_checkpoint(tmp_path / name) for name in ("stacked", "apart")]
    assert checkpoints[0].num_bytes == checkpoints[1].num_bytes
    for checkpoint in checkpoints:
        wanted = state_of(model)
        assert set(checkpoint.tensors) == set(wanted)
        assert all(torch.equal(checkpoint.tensors[name], weight) for name, weight in wanted.items())


@pytest.mark.parametrize("as_published", [False, True])
def test_the_language_model_of_a_gemma_that_sees_is_loaded_alone(as_published: bool, tmp_path: Path) -> None:
    text = make_model("gemma3", tmp_path / "text", tied=True)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = SiglipVisionConfig(image_size=8, patch_size=4, **sizes)
    config = Gemma3Config(text_config=text.config, vision_config=vision, mm_tokens_per_image=1)
    model = Gemma3ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.save_pretrained(tmp_path / "whole", save_original_format=as_published)
    found, wanted = load_checkpoint(tmp_path / "whole"), load_checkpoint(tmp_path / "text")
    assert found.config == wanted.config
    assert set(found.tensors) == set(wanted.tensors)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in wanted.tensors.items())
    assert found.num_bytes == wanted.num_bytes


def test_experts_of_old_gguf_files_are_not_stacked(tmp_path: Path) -> None:
    model = make_model("mixtral", tmp_path)
    write_gguf(model, tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "llama")
    for key, value in read_gguf(tmp_path / "m.gguf").metadata.items():
        if isinstance(value, int | float) and key.startswith("llama."):
            writer.add_key_value(
                key, value, gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
            )
    for name, values in gguf_tensors(model):
        if "_exps" in name:
            for expert, matrix in enumerate(values):
                writer.add_tensor(name.replace("_exps", f".{expert}"), matrix)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found, wanted = load_checkpoint(tmp_path / "old.gguf").tensors, load_checkpoint(tmp_path / "m.gguf").tensors
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("file_type", GGUF_FILE_TYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral", "qwen3moe"])
def test_quantised_tensors_are_what_gguf_makes_of_them(family: str, file_type: str, tmp_path: Path) -> None:
    model = make_model(family, tmp_path)
    write_gguf(model, tmp_path / "m.gguf", file_type)
    checkpoint = load_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.file_type == file_type
    quant = gguf.GGMLQuantizationType[file_type]
    for name, weight in state_of(model).items():
        found, wanted = checkpoint.tensors[name], weight
        if weight.ndim == 2 and not name.endswith(
            "mlp.gate.weight"
        ):  # rows are quantised one by one, so their order in the file does not matter
            wanted = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), quant), quant))
        assert torch.equal(found, wanted), name
        assert (found - weight).abs().max() <= QUANTISATION_ERROR[file_type] * weight.abs().max(), name


@pytest.mark.parametrize(("dtype", "file_type"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_safetensors_keep_the_type_they_are_stored_in(dtype: torch.dtype, file_type: str, tmp_path: Path) -> None:
    model = make_model("qwen3", tmp_path, dtype=dtype)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.file_type == file_type
    assert checkpoint.num_bytes == 2 * checkpoint.num_parameters
    assert all(torch.equal(checkpoint.tensors[name], weight.to(dtype)) for name, weight in model.state_dict().items())
    assert {weight.dtype for weight in checkpoint.tensors.values()} == {dtype}


def test_the_demo_model_loads(smollm2_path: Path) -> None:
    checkpoint = load_checkpoint(smollm2_path)
    assert (checkpoint.config.family, checkpoint.file_type) == ("llama", "Q4_1")
    assert (checkpoint.num_parameters, checkpoint.num_bytes) == (134_515_008, 96_576_768)
    assert checkpoint.config.tied_embeddings
    assert checkpoint.config.rope_theta == 100_000.0
    assert checkpoint.eog_ids == {2}
    assert checkpoint.tensors["model.layers.29.self_attn.k_proj.weight"].shape == (192, 576)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_the_directory_stands_for_it(name: str, directory: Path) -> None:
    assert load_checkpoint(directory / name).path == directory


def test_an_index_stands_for_its_directory(tmp_path: Path) -> None:
    make_model("llama", tmp_path, sharded=True)
    assert load_checkpoint(tmp_path / "model.safetensors.index.json").path == tmp_path


def test_gguf_is_known_by_its_content_not_by_its_name(tmp_path: Path) -> None:
    write_gguf(make_model("llama", tmp_path), tmp_path / "model.bin")
    assert load_checkpoint(tmp_path / "model.bin").format == "gguf"


def test_end_of_generation_tokens_are_collected_from_both_files(directory: Path) -> None:
    edit_json(directory / "config.json", eos_token_id=2)
    edit_json(directory / "generation_config.json", eos_token_id=[5, 6])
    assert load_checkpoint(directory).eog_ids == {2, 5, 6}
    (directory / "generation_config.json").unlink()
    assert load_checkpoint(directory).eog_ids == {2}
    edit_json(directory / "config.json", eos_token_id=None)
    assert load_checkpoint(directory).eog_ids == set()


@pytest.mark.parametrize("ids", [-1, 265, True, "2", [2, 265], 2.0])
def test_an_end_token_outside_the_vocabulary_is_refused(ids: object, directory: Path) -> None:
    edit_json(directory / "generation_config.json", eos_token_id=ids)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is .* from 0 to 264"):
        load_checkpoint(directory)


def test_a_repeated_tied_head_is_left_out_where_it_equals_the_embeddings(tmp_path: Path) -> None:
    embeddings = make_model("llama", tmp_path, tied=True).state_dict()["model.embed_tokens.weight"]
    edit_tensors(tmp_path / "model.safetensors", {"lm_head.weight": embeddings.clone()})
    assert "lm_head.weight" not in load_checkpoint(tmp_path).tensors
    for other in (embeddings + 1, embeddings.half(), embeddings[:-1].clone()):
        edit_tensors(tmp_path / "model.safetensors", {"lm_head.weight": other})
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
            load_checkpoint(tmp_path)


def test_saved_rotary_frequencies_are_left_out(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(directory / "model.safetensors", {name: torch.ones(8)})
    assert name not in load_checkpoint(directory).tensors


def test_a_tensor_that_does_not_fit_the_configuration_is_refused(directory: Path) -> None:
    edit_json(directory / "config.json", num_key_value_heads=4)
    with pytest.raises(CheckpointError, match=r"0\.self_attn\.k_proj\.weight has the shape \(32, 64\)"):
        load_checkpoint(directory)


def test_a_gguf_tensor_that_no_family_has_is_refused(tmp_path: Path) -> None:
    write_gguf(make_model("llama", tmp_path), tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content.replace(b"blk.1.ffn_gate.weight", b"blk.1.ffn_gats.weight"))
    with pytest.raises(CheckpointError, match=r"tensor blk\.1\.ffn_gats\.weight is none of"):
        load_checkpoint(tmp_path / "m.gguf")


def test_a_gguf_file_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    write_gguf(make_model("llama", tmp_path), tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(content.replace(b"blk.1.ffn_gate.weight", b"blk.9.ffn_gate.weight"))
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.mlp\.gate_proj\.weight is missing"):
        load_checkpoint(tmp_path / "m.gguf")


def test_a_gguf_file_with_fewer_experts_than_it_says_is_refused(tmp_path: Path) -> None:
    write_gguf(make_model("mixtral", tmp_path), tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    count = content.index(b"llama.expert_count") + len("llama.expert_count") + 4
    (tmp_path / "m.gguf").write_bytes(content[:count] + (10**9).to_bytes(4, "little") + content[count + 4 :])
    with pytest.raises(CheckpointError, match=r"0\.mlp\.gate\.weight has the shape \(4, 64\)"):
        load_checkpoint(tmp_path / "m.gguf")


def test_what_is_no_model_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file or directory"):
        load_checkpoint(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="neither a GGUF file nor a directory"):
        load_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match=r"there is no config\.json$"):
        load_checkpoint(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"name it: .*m\.gguf"):
        load_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="this is an adapter, not a model"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_config_json_is_refused(content: bytes, directory: Path) -> None:
    (directory / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        load_checkpoint(directory)
