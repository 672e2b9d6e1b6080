"""An environment of its own for each client, made once and kept: what pip installs for it, and what comes otherwise.

guidellm wants torch, and vLLM's benchmark imports it. A plain `pip install` would fetch the CUDA build of several
gigabytes; so a CPU build is installed first where pip's own configuration has one at hand (find-links) or
TORCH_INDEX_URL names an index of such, as the Makefile does for the server itself. vLLM's wheel is a gigabyte of CUDA
kernels: only the Python files of its source distribution are taken, and only the packages that its benchmark imports,
in the versions that the distribution asks for.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.model.fetch_converter import fetch_archive, index_url

_VLLM = "0.33.0"
_VLLM_IMPORTS = (
    "aiohttp cachetools cbor2 cloudpickle einops fastapi gguf llguidance msgspec numpy openai openai-harmony "
    "opencv-python-headless partial-json-parser pillow prometheus-client psutil py-cpuinfo pybase64 pydantic "
    "python-json-logger pyyaml pyzmq regex requests setproctitle tqdm transformers uvloop xgrammar"
)


class ClientMissing(Exception):
    """The client cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and what its environment holds."""

    name: str
    requirements: tuple[str, ...]
    module: str
    """What runs it, below tests.clients."""
    needs_torch: bool = False
    source: tuple[str, str] | None = None
    """A project and its source distribution, whose Python files are all that is taken of it."""
    is_load_tool: bool = False
    """Whether it is told its name, and given a tokenizer and a folder."""


CLIENTS = (
    Client("openai", ("openai",), "openai_client"),
    Client("anthropic", ("anthropic",), "anthropic_client"),
    Client("litellm", ("litellm",), "litellm_client"),
    Client("langchain", ("langchain-openai",), "langchain_client"),
    Client("instructor", ("instructor", "anthropic"), "instructor_client"),
    Client("agents", ("openai-agents",), "agents_client"),
    Client("pydantic-ai", ("pydantic-ai-slim[openai]",), "pydantic_ai_client"),
    Client("lm-eval", ("lm-eval[api]", "transformers"), "lm_eval_client", is_load_tool=True),
    Client("locust", ("locust",), "load_tools", is_load_tool=True),
    Client(
        "vllm",
        tuple(_VLLM_IMPORTS.split()),
        "load_tools",
        needs_torch=True,
        source=("vllm", f"vllm-{_VLLM}.tar.gz"),
        is_load_tool=True,
    ),
    Client("guidellm", ("guidellm",), "load_tools", needs_torch=True, is_load_tool=True),
    Client("aiperf", ("aiperf",), "load_tools", is_load_tool=True),
)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a client runs."""

    python: Path
    path: tuple[Path, ...]
    """Folders that it imports from, beside its packages."""


def prepare(client: Client, folder: Path) -> Environment:
    """Return the environment of `client` in `folder`, made where it is not there or was made otherwise.

    Raises ClientMissing with the end of pip's words.
    """
    home = folder / client.name
    python, stamp, source = home / "bin" / "python", home / ".made-of", home / "source"
    environment = Environment(python, (source,) if client.source else ())
    made_of = hashlib.sha256(repr(client).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == made_of:
        return environment
    _run(sys.executable, "-m", "venv", "--clear", str(home))
    if client.needs_torch:
        _install_torch(python)
    requirements: Sequence[str] = client.requirements
    if client.source is not None:
        project = client.source[0]
        _unpack_python(fetch_archive(index_url(), *client.source), project, source)
        requirements = _in_versions_of(source / f"{project}.egg-info" / "requires.txt", requirements)
    _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
    stamp.write_text(made_of)
    return environment


def _install_torch(python: Path) -> None:
    pip = (str(python), "-m", "pip", "install", "--quiet")
    index = os.environ.get("TORCH_INDEX_URL")
    try:
        _run(*pip, "--no-index", "--no-deps", "torch>=2.4")
    except ClientMissing:
        _run(*pip, "torch>=2.4", *(("--index-url", index) if index else ()))


def _unpack_python(archive: bytes, project: str, folder: Path) -> None:
    """Write the Python files of a source distribution's package, and what says its version, below `folder`."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for entry in tar:
            _, _, name = entry.name.partition("/")
            is_module = name.startswith(f"{project}/") and name.endswith(".py")
            if entry.isfile() and (is_module or name.startswith(f"{project}.egg-info/")):
                tar.extract(entry.replace(name=name), folder, filter="data")


def _in_versions_of(file: Path, names: Sequence[str]) -> list[str]:
    """Return the packages with the versions that a distribution's list asks for; without where it names none."""
    required, *_ = re.split(r"^\[[^:]", file.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    asked: dict[str, str] = dict(re.findall(r"^([\w.-]+)(?:\[.*?\])?(.*)$", required, re.MULTILINE))
    return [f"{name}{asked.get(name) or asked.get(name.replace('-', '_'), '')}" for name in names]


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise ClientMissing(f"{' '.join(command[1:])}: {done.stdout.strip()[-300:]}")
