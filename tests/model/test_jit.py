"""Compiled kernels kept on disk must not outlive the code that they were made from."""

from pathlib import Path

from model import jit


def test_every_module_that_kernels_borrow_from_takes_part_in_the_name_of_the_machine_code() -> None:
    folder = Path(jit.__file__).parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    compiled_there = {name for name, text in sources.items() if "import inlined" in text or "import intrinsic" in text}
    lenders = {name for name in compiled_there if "@kernel" not in sources[name]}
    assert {"simd.py", "team.py", "matrices_cpu.py"} <= lenders
    assert lenders | {"jit.py"} == set(jit._BORROWED)
