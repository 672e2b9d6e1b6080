"""Run a client's checks, one after the other; each is a function whose name says what it shows. It must not import
anything of ours: it runs in the environment of the client."""

import json
from collections.abc import Callable
from importlib.metadata import version

REPORT = "report: "
"""What the line for the runner begins with."""


def run_checks(package: str, *checks: Callable[[], object]) -> None:
    """Run the checks, and print a line for the runner. The first that fails ends the program, with a traceback."""
    for check in checks:
        check()
        print(f"ok: {check.__name__.replace('_', ' ')}", flush=True)
    report(package, f"{len(checks)} checks")


def error_of(kind: type[Exception], call: Callable[[], object]) -> str:
    """Return the words of the error of this kind that `call` ends with. Raises AssertionError where it ends well."""
    try:
        answer = call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")


def report(package: str, outcome: str) -> None:
    """Print the line that the runner reads: the client's version, and what came out, in words."""
    line = REPORT + json.dumps({"version": version(package), "outcome": outcome})
    print(f"\n{line}", flush=True)  # a tool need not have ended its last line
