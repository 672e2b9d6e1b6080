"""Which backend a machine gets, and what it says where it cannot do as asked."""

from pathlib import Path

import pytest
import torch

from model.attention import DenseAttention
from model.backend import BackendError, choose_backend, reference_backend
from model.checkpoint.weights import Checkpoint, load_checkpoint
from model.cpu.attention import PagedAttention
from model.cpu.jit import compiles_for
from model.cpu.kernels import CpuOps
from model.layers import TorchOps
from tests.model.tiny import make_model, write_gguf


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cpu_gets_the_fused_kernels(dtype: str) -> None:
    backend = choose_backend("cpu", dtype)
    assert backend.device == torch.device("cpu")
    assert str(backend.dtype) == f"torch.{dtype}"
    assert isinstance(backend.ops, CpuOps)
    assert isinstance(backend.attention, PagedAttention)


def test_auto_chooses_a_dtype_that_the_cpu_computes() -> None:
    backend = choose_backend("cpu")
    assert backend.dtype in (torch.float32, torch.bfloat16)
    assert isinstance(backend.ops, CpuOps)
    assert backend.ops.dtype == backend.dtype


def test_the_reference_is_plain_torch() -> None:
    backend = reference_backend(torch.bfloat16)
    assert isinstance(backend.ops, TorchOps)
    assert isinstance(backend.attention, DenseAttention)
    assert (backend.dtype, backend.packed) == (torch.bfloat16, False)


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("tpu", "auto", "device is 'tpu', choose auto, cpu or cuda"),
        ("cpu", "int4", "dtype is 'int4', choose auto, float32, bfloat16, float16, int8"),
        ("cpu", "int8", "dtype int8 cannot be computed: no checkpoint is given; choose auto, float32 or bfloat16"),
        ("cpu", "float16", "dtype float16 is not computed on cpu, choose auto, float32 or bfloat16"),
    ],
)
def test_refuses_what_does_not_exist(device: str, dtype: str, message: str) -> None:
    with pytest.raises(BackendError) as refusal:
        choose_backend(device, dtype)
    assert str(refusal.value) == message


needs_vnni = pytest.mark.skipif(not compiles_for("avx512vnni"), reason="the CPU has no AVX-512 VNNI")


def gguf_of(family: str, file_type: str, folder: Path, **changes: object) -> Checkpoint:
    write_gguf(make_model(family, folder / "hf", changes=changes), folder / "model.gguf", file_type)
    return load_checkpoint(folder / "model.gguf")


@needs_vnni
def test_auto_multiplies_integers_where_the_checkpoint_is_quantised_in_blocks(tmp_path: Path) -> None:
    backend = choose_backend("cpu", "auto", gguf_of("llama", "Q4_1", tmp_path))
    assert backend.blocks
    assert backend.dtype == torch.bfloat16
    assert backend.head_ops.dtype == torch.float32


@pytest.mark.parametrize(("family", "file_type"), [("llama", "F16"), ("mixtral", "Q8_0")])
def test_auto_leaves_other_checkpoints_as_they_are(family: str, file_type: str, tmp_path: Path) -> None:
    backend = choose_backend("cpu", "auto", gguf_of(family, file_type, tmp_path))
    assert not backend.blocks
    assert backend.dtype == choose_backend("cpu").dtype


@needs_vnni
def test_integers_can_be_asked_for(tmp_path: Path) -> None:
    assert choose_backend("cpu", "int8", gguf_of("llama", "F32", tmp_path)).blocks


@needs_vnni
@pytest.mark.parametrize(
    ("family", "changes", "obstacle"),
    [
        ("mixtral", {}, "the model is a mixture of experts"),
        ("llama", {"intermediate_size": 120}, "the model's intermediate size, 120, is no multiple of 32"),
        (
            "qwen3",
            {"head_dim": 24, "num_attention_heads": 2},
            "the model's width of attention, 48, is no multiple of 32",
        ),
    ],
)
def test_names_what_is_in_the_way_of_integers(
    family: str, changes: dict[str, object], obstacle: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=f"dtype int8 cannot be computed: {obstacle}; choose auto"):
        choose_backend("cpu", "int8", gguf_of(family, "F32", tmp_path, **changes))


def test_a_cpu_without_the_instructions_does_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.backend.compiles_for", lambda extension: False)
    checkpoint = gguf_of("llama", "Q8_0", tmp_path)
    assert not choose_backend("cpu", "auto", checkpoint).blocks
    with pytest.raises(BackendError, match="the CPU has no AVX-512 VNNI"):
        choose_backend("cpu", "int8", checkpoint)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_card_auto_is_the_cpu_and_cuda_is_refused() -> None:
    assert choose_backend("auto", "float32").device == torch.device("cpu")
    with pytest.raises(BackendError, match="device is 'cuda', but torch finds no CUDA device"):
        choose_backend("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_the_card_gets_a_backend(dtype: str) -> None:
    backend = choose_backend("cuda", dtype)
    assert backend.device.type == "cuda"
    assert isinstance(backend.ops, TorchOps)
