"""Compiled kernels kept on disk must not outlive the code that they were made from."""

from pathlib import Path

from model.cpu import jit
from model.cpu.jit import sources_of

MODULES = {f"model.{path.stem}": path.read_text(encoding="utf-8") for path in Path(jit.__file__).parent.glob("*.py")}


def test_all_that_a_kernel_may_hold_takes_part_in_the_name_of_its_machine_code() -> None:
    lenders = {"model.simd", "model.block_products", "model.amx", "model.attention_cpu", "model.team", "model.jit"}
    assert lenders | {"model.fused_layers", "scheduler.batch"} <= sources_of("model.fused_layers")
    assert sources_of("model.simd") == {"model.simd", "model.jit"}


def test_what_kernels_do_not_read_takes_no_part() -> None:
    assert not {"model.sampler", "model.decoder", "model.block_decoder"} & sources_of("model.fused_layers")


def test_modules_with_kernels_name_what_they_import_in_the_way_that_is_looked_for() -> None:
    for name, text in MODULES.items():
        if "@kernel" in text:
            assert "import model" not in text, name
            assert "from model import" not in text, name
