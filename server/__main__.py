"""The command `cohort`: reads the command line and starts what it names."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from server.command_line import add_flags, read_settings
from server.settings import ENV_PREFIX, Settings
from server.simulate.command import run_simulate
from server.version import VERSION

_SERVE = "serve a model over HTTP, with llama-server's and OpenAI's routes"
_SIMULATE = "run the scheduler under a virtual clock, without a model"


def read_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command and its arguments. A wrong command ends the process with code 2 and a message."""
    parser = argparse.ArgumentParser(
        prog="cohort",
        description="Serve one language model with many LoRA adapters; every batch holds one adapter list.",
        epilog=f"serve: {_SERVE}. simulate: {_SIMULATE}.",
    )
    parser.add_argument("--version", action="version", version=f"cohort {VERSION}")
    parser.add_argument("command", choices=["serve", "simulate"])
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see: cohort serve --help, cohort simulate --help")
    command = parser.parse_args(arguments)
    return command.command, command.arguments


def read_serve_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings of `cohort serve`. A wrong flag ends the process with code 2 and a message that names it."""
    parser = argparse.ArgumentParser(
        prog="cohort serve",
        usage="cohort serve -m MODEL [--lora PATH] … [options]",
        description=_SERVE[0].upper() + _SERVE[1:] + ".",
        epilog=f"Each option is also an environment variable ({ENV_PREFIX}CTX_SIZE, …); the command line wins.",
        allow_abbrev=False,
    )
    add_flags(parser)
    return read_settings(parser, arguments)


def set_thread_defaults() -> None:
    """Set what the arithmetic libraries read from the environment once: before torch is imported, or not at all."""
    # Read by libgomp when torch is imported. By default its threads spin for milliseconds at every barrier; when some
    # other thread needs the core (the event loop, a client on the same machine), a step's 300 barriers wait for it.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # Read by oneDNN before its first product. With AMX its products of bfloat16 give a row other bits in other batches,
    # and serial equivalence goes; with AVX-512 they do not.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command, rest = read_command(sys.argv[1:] if arguments is None else arguments)
    if command == "simulate":
        return run_simulate(rest)
    settings = read_serve_settings(rest)
    set_thread_defaults()
    from server.lifecycle import serve  # only now: a wrong flag should not wait for torch

    gc.freeze()  # what was imported is never garbage: looking through it again would hold up streams for 0.3 s
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
