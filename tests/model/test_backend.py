"""Which backend a machine gets, and what it says where it cannot do as asked."""

import pytest
import torch

from model.attention import DenseAttention
from model.attention_cpu import PagedAttention
from model.backend import BackendError, choose_backend, reference_backend
from model.kernels_cpu import CpuOps
from model.layers import TorchOps


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
        ("cpu", "int8", "dtype is 'int8', choose auto, float32, bfloat16, float16"),
        ("cpu", "float16", "dtype float16 is not computed on cpu, choose auto, float32 or bfloat16"),
    ],
)
def test_refuses_what_does_not_exist(device: str, dtype: str, message: str) -> None:
    with pytest.raises(BackendError) as refusal:
        choose_backend(device, dtype)
    assert str(refusal.value) == message


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
