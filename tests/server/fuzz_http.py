"""Send random requests that fit the OpenAPI document, and such that do not: `python -m tests.server.fuzz_http --minutes
30`, as `make test-schemathesis` does against the demo server.

It ends at the first answer that is a 5xx (but for a 501, of what the model or the settings do not offer), that does not
come, or that is not as the document says; refusals have the form of errors there. Exit code 0: there was none.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.load.demo_server import demo_server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501]

[output.truncation]
max-recorded-payload-size = 1073741824
"""
"""Hundreds of probabilities for each token are longer than what is recorded of an answer by default, and checked."""
REQUEST_TIMEOUT_S = 60
"""Far longer than the longest answer that FLAGS leave room for."""
FLAGS = ("-c", "512", "-np", "2", "--log-level", "warning")


def fuzz(url: str, seconds: int, seed: int | None = None) -> int:
    """Fuzz the server at `url` for so long; return the exit code."""
    command = [
        *(str(Path(sys.executable).absolute().with_name("schemathesis")), "fuzz", f"{url}/openapi.json"),
        *("--max-time", str(seconds), "--request-timeout", str(REQUEST_TIMEOUT_S), "--checks", CHECKS),
        *("--mode", "all", "--generation-database", "none", "--no-color"),
        *(() if seed is None else ("--seed", str(seed))),
    ]
    with tempfile.TemporaryDirectory() as folder:  # for what it keeps between runs
        (Path(folder) / "schemathesis.toml").write_text(CONFIG)
        return subprocess.run(command, cwd=folder, check=False).returncode


def main() -> int:
    """Fuzz the demo server for as long as the command line says."""
    parser = argparse.ArgumentParser(description="Send random requests to the demo server.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="of the requests; without one they are others each time")
    arguments = parser.parse_args()
    with demo_server(*FLAGS) as port:
        return fuzz(f"http://127.0.0.1:{port}", round(60 * arguments.minutes), arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
