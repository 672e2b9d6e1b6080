"""One arrow between the packages, `server → model → scheduler`, read from the source; and no file too long to read."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("scheduler", "model", "server", "tests")
SHIPPED = ("scheduler", "model", "server")
MAX_LINES = 400


def sources(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"no sources of {package} below {ROOT}"
    return files


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, by full name.

    `from a import b` yields both a and a.b, for b may be a module."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports_of(package: str) -> list[tuple[str, str]]:
    """Pairs of file and imported module of one package."""
    return [(str(path.relative_to(ROOT)), name) for path in sources(package) for name in imported_modules(path)]


def top(module: str) -> str:
    return module.partition(".")[0]


def is_within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def test_scheduler_imports_the_standard_library_and_itself_alone() -> None:
    allowed = sys.stdlib_module_names | {"scheduler"}
    assert [pair for pair in imports_of("scheduler") if top(pair[1]) not in allowed] == []


def test_model_imports_of_ours_the_contract_alone() -> None:
    allowed = ("model", "scheduler.batch", "scheduler.cohort")
    ours = [(path, name) for path, name in imports_of("model") if top(name) in OURS]
    assert [(path, name) for path, name in ours if not is_within(name, allowed) and name != "scheduler"] == []


@pytest.mark.parametrize("package", SHIPPED)
def test_shipped_code_never_imports_tests(package: str) -> None:
    assert [pair for pair in imports_of(package) if top(pair[1]) == "tests"] == []


def part_of(module: str) -> str:
    """The file or folder directly in a package that a module is, or lies in: `model.cpu.jit` is in `model.cpu`."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("package", ["model", "server"])
def test_files_and_folders_of_a_package_import_each_other_in_one_direction(package: str) -> None:
    needs: dict[str, set[str]] = {}
    for path, module in imports_of(package):
        importer = part_of(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        if top(module) == package and module != package and part_of(module) != importer:
            needs.setdefault(importer, set()).add(part_of(module))
    while leaves := [part for part, needed in needs.items() if not needed & needs.keys()]:
        for part in leaves:
            del needs[part]
    assert needs == {}, "these import each other in a circle, or need those that do"


def test_only_the_loop_awaits() -> None:
    asynchronous = {
        str(path.relative_to(ROOT))
        for path in sources("scheduler")
        if any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }
    assert asynchronous == {"scheduler/loop.py"}


def test_scheduler_loads_without_torch_and_numpy() -> None:
    program = "import sys, scheduler.loop, scheduler.core; print(sorted({'torch', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", OURS)
def test_no_source_file_is_too_long_to_read(package: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in sources(package)}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_imports_are_found_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "scheduler" / "late.py"
    path.parent.mkdir()
    path.write_text("def late():\n    import torch.nn\n    from .core import Scheduler\n    from model import layers\n")
    found = list(imported_modules(path))
    assert found == ["torch.nn", "scheduler.core", "scheduler.core.Scheduler", "model", "model.layers"]
