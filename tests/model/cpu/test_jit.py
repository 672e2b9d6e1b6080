"""Compiled kernels kept on disk must not outlive the code that they were made from."""

from pathlib import Path

from model.cpu import jit
from model.cpu.jit import sources_of

_ROOT = Path(jit.__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(_ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
    for path in (_ROOT / "model").rglob("*.py")
}
LAYERS = "model.cpu.fused_layers"


def test_all_that_a_kernel_may_hold_takes_part_in_the_name_of_its_machine_code() -> None:
    lenders = {f"model.cpu.{name}" for name in ("simd", "block_products", "amx", "attention", "team", "jit")}
    assert lenders | {LAYERS, "scheduler.batch"} <= sources_of(LAYERS)
    assert sources_of("model.cpu.simd") == {"model.cpu.simd", "model.cpu.jit"}


def test_what_kernels_do_not_read_takes_no_part() -> None:
    strangers = {"model.sampling.sampler", "model.decoder", "model.block_decoder"}
    assert strangers <= MODULES.keys()
    assert not strangers & sources_of(LAYERS)


def test_modules_with_kernels_name_what_they_import_in_the_way_that_is_looked_for() -> None:
    with_kernels = {name: text for name, text in MODULES.items() if "\n@kernel" in text}
    assert LAYERS in with_kernels
    for name, text in with_kernels.items():
        assert "import model" not in text, name
        assert "from model import" not in text, name
