"""Run llama.cpp's own server tests against this server: `make test-upstream`. Prints a table of them by file.

usage: python -m tests.upstream.run [--folder DIR] [arguments of pytest, such as unit/test_basic.py or -k NAME]

The tests come in the source distribution that tests/load/peer.py builds the peer from; they are unpacked beside it, run
in an environment of their own, and start the program launcher.py, whose models models.py makes. Exit code 1 where a
test fails that not_applicable.py does not name, or names and is not there.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from server.__main__ import read_serve_settings
from server.assembly import load_engine
from tests.load.demo_server import ROOT
from tests.load.peer import unpack_source
from tests.model.fetch_converter import fetch_archive, index_url
from tests.upstream import models
from tests.upstream.launcher import RANDOM, STORYTELLER
from tests.upstream.not_applicable import NOT_APPLICABLE, matches
from tests.upstream.report import Outcome, Result, failures, read_results, table

PACKAGES = ("openai~=2.14.0", "pytest~=8.3", "pytest-xdist~=3.6", "requests~=2.32", "wget~=3.2")
"""What the tests import, in the versions that their requirements.txt names."""
ADAPTER = "moe_shakespeare15M.gguf"
"""The name under which test_lora.py looks for an adapter before it downloads one."""
_HERE = Path(__file__).parent
_START_S = 120.0


def main() -> int:
    """Prepare what is missing, run the tests, print the table; return the exit code."""
    parser = argparse.ArgumentParser(description="llama.cpp's own server tests against this server")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "peer", help="where what is made is kept")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="tests at once")
    options, chosen = parser.parse_known_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    tests = find_tests(folder)
    python = make_environment(folder / "upstream")
    make_models(folder / "upstream", tests / "tmp")
    compile_kernels(folder / "upstream", tests / "tmp" / ADAPTER)
    report = folder / "upstream" / "report.xml"
    with warm_server(folder / "upstream") as program:
        _run_tests(tests, python, program, report, [f"--numprocesses={options.workers}", *chosen])
    results = read_results(report)
    print("\n".join([*failures(results), *(unmatched(results) if not chosen else []), "", *table(results)]))
    print(f"\n{time.monotonic() - began_s:.0f} s")
    failed = any(result.outcome is Outcome.FAILED for result in results) or not results
    return int(failed or (not chosen and bool(unmatched(results))))


def find_tests(folder: Path) -> Path:
    """Return the directory of the tests, unpacked below `folder` where it is not there yet."""
    tests = folder / "llama.cpp" / "tools" / "server" / "tests"
    if not tests.is_dir():
        print("fetching llama.cpp's source distribution", flush=True)
        unpack_source(fetch_archive(index_url()), folder)
    return tests


def make_environment(folder: Path) -> Path:
    """Return the Python of the environment in `folder` that has PACKAGES, made where it is not there yet."""
    environment, ready = folder / "venv", folder / "venv" / "packages"
    python = environment / "bin" / "python"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != "\n".join(PACKAGES):
        print("making an environment for the tests", flush=True)
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        ready.write_text("\n".join(PACKAGES), encoding="utf-8")
    return python


def make_models(folder: Path, downloads: Path) -> None:
    """Write the models to `folder`, and the adapter to where the tests would download one to."""
    downloads.mkdir(exist_ok=True)
    models.write_random_model(folder / RANDOM)
    models.write_storyteller(folder / STORYTELLER)
    models.write_storytellers_adapter(downloads / ADAPTER)


def compile_kernels(folder: Path, adapter: Path) -> None:
    """Load the models once: in a fresh checkout that compiles kernels, for longer than the tests wait for a start."""
    print("loading the models once", flush=True)
    for flags in (["-m", str(folder / RANDOM)], ["-m", str(folder / STORYTELLER), "--lora", str(adapter)]):
        load_engine(read_serve_settings(flags))


@contextmanager
def warm_server(folder: Path) -> Iterator[Path]:
    """Run warm.py, and yield the program that starts servers of it."""
    socket_path, program = folder / "warm.socket", folder / "llama-server"
    socket_path.unlink(missing_ok=True)
    launch = [sys.executable, "-S", "-E", str(_HERE / "launcher.py"), str(socket_path), str(folder)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(launch)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    warm = subprocess.Popen([sys.executable, "-m", "tests.upstream.warm", str(socket_path)], cwd=ROOT)
    try:
        give_up_s = time.monotonic() + _START_S
        while not socket_path.exists():
            if warm.poll() is not None or time.monotonic() > give_up_s:
                raise SystemExit("the server cannot be imported")
            time.sleep(0.05)
        yield program
    finally:
        warm.terminate()
        warm.wait()


def _run_tests(tests: Path, python: Path, program: Path, report: Path, arguments: Sequence[str]) -> None:
    report.unlink(missing_ok=True)
    added = {
        "LLAMA_SERVER_BIN_PATH": str(program),
        "PORT": str(_free_ports()),
        "PYTHONPATH": os.pathsep.join([str(tests), str(_HERE)]),
    }
    own = [f"--junit-xml={report}", "--noconftest", "-p", "plugin", "-p", "no:cacheprovider", "--tb=short", "-q"]
    subprocess.run([python, "-m", "pytest", *own, *arguments], cwd=tests, env=os.environ | added, check=False)
    shutil.rmtree(tests / "__pycache__", ignore_errors=True)
    if not report.is_file():
        raise SystemExit("pytest wrote no report")


def _free_ports() -> int:
    """Return the first of some ports that are likely free, below those that systems give to clients' connections."""
    for port in range(18000, 19000, 20):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise SystemExit("no port from 18000 on is free")


def unmatched(results: Sequence[Result]) -> list[str]:
    """Return a line for each pattern of not_applicable.py that names no test."""
    names = [result.test for result in results]
    stale = [pattern for pattern in NOT_APPLICABLE if not any(matches(pattern, name) for name in names)]
    return [f"not_applicable.py names {pattern}, which is not there" for pattern in stale]


if __name__ == "__main__":
    sys.exit(main())
