"""The clients that exist, unmodified, against the demo server: `make test-clients`. Prints a table, and ends with 1
where one of them failed.

usage: python -m tests.clients [--only openai,locust] [--folder build/clients] [--verbose]

Each client has an environment of its own, which is made once and kept. One that cannot be had is skipped, and the
table says why. How to point each of them at a server: docs/clients.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from docs.demo.model_path import demo_model_path
from tests.clients.checks import REPORT
from tests.clients.environments import CLIENTS, Client, ClientMissing, Environment, prepare
from tests.load.demo_server import ROOT, demo_server

_LIMIT_S = 600.0
"""For the server's start, and for one client's run."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    client: str
    version: str
    outcome: str
    seconds: float
    has_failed: bool = False


def main() -> None:
    """Run all clients, print, and say by the exit code whether all that ran did well."""
    options = _options()
    names = options.only.split(",")
    known = [client.name for client in CLIENTS]
    if unknown := set(names) - set(known):
        raise SystemExit(f"there is no client {', '.join(sorted(unknown))}; the clients are {', '.join(known)}")
    chosen = [client for client in CLIENTS if client.name in names]
    prepared = {client.name: _prepared(client, options.folder) for client in chosen}
    with tempfile.TemporaryDirectory() as scratch, demo_server("--alias", "smollm2", start_s=_LIMIT_S) as port:
        tokenizer = _write_tokenizer(Path(scratch) / "tokenizer")
        rows = []
        for client in chosen:
            (folder := Path(scratch) / client.name).mkdir()
            environment, arguments = prepared[client.name], [f"http://127.0.0.1:{port}"]
            if client.is_load_tool:
                arguments = [client.name, *arguments, str(tokenizer), str(folder)]
            rows.append(_run(client, environment, arguments, verbose=options.verbose))
            print(_line(rows[-1]), flush=True)
    print("\nclient       version     outcome")
    print("\n".join(map(_line, rows)))
    sys.exit(any(row.has_failed for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="clients and load tools, unmodified, against the demo server")
    parser.add_argument("--only", default=",".join(client.name for client in CLIENTS), help="names with commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients", help="where environments are kept")
    parser.add_argument("--verbose", action="store_true", help="show what the clients print")
    return parser.parse_args()


def _prepared(client: Client, folder: Path) -> Environment | ClientMissing:
    print(f"preparing {client.name}", flush=True)
    try:
        return prepare(client, folder.resolve())
    except ClientMissing as missing:
        return missing


def _write_tokenizer(folder: Path) -> Path:
    """Write the demo model's tokenizer as a hub has it: load tools make prompts of so many tokens with it."""
    model = demo_model_path()
    AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(folder)
    return folder


def _run(client: Client, environment: Environment | ClientMissing, arguments: list[str], *, verbose: bool) -> Row:
    if isinstance(environment, ClientMissing):
        return Row(client.name, "-", f"skipped: {environment}", 0.0)
    began_s = time.perf_counter()
    command = [str(environment.python), "-m", f"tests.clients.{client.module}", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | _variables(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(client.name, "-", f"FAILED: not done in {_LIMIT_S:.0f} s", _LIMIT_S, has_failed=True)
    seconds = time.perf_counter() - began_s
    reports = [line for line in done.stdout.splitlines() if line.startswith(REPORT)]
    if verbose or done.returncode or not reports:
        print(done.stdout[-6000:], flush=True)
    if done.returncode or not reports:
        return Row(client.name, "-", f"FAILED with exit code {done.returncode}", seconds, has_failed=True)
    report = json.loads(reports[-1].removeprefix(REPORT))
    return Row(client.name, report["version"], report["outcome"], seconds)


def _variables(environment: Environment) -> Mapping[str, str]:
    return {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *environment.path)))}


def _line(row: Row) -> str:
    return f"{row.client:<13}{row.version:<12}{row.outcome}  ({row.seconds:.0f} s)"


if __name__ == "__main__":
    main()
