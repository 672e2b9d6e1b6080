"""The command `cohort`: reads the command line and starts what it names."""

import argparse
import sys
from collections.abc import Sequence

from server.settings import ENV_PREFIX, add_flags, read_settings
from server.version import VERSION

_SERVE = "serve a model over HTTP, with llama-server's and OpenAI's routes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="cohort",
        description="Serve one language model with many LoRA adapters; every batch holds one adapter list.",
    )
    parser.add_argument("--version", action="version", version=f"cohort {VERSION}")
    parser.add_argument("command", choices=["serve"], help=_SERVE)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see: cohort serve --help")
    command = parser.parse_args(arguments)

    serve_parser = argparse.ArgumentParser(
        prog="cohort serve",
        usage="cohort serve -m MODEL [--lora PATH] … [options]",
        description=_SERVE[0].upper() + _SERVE[1:] + ".",
        epilog=f"Each option is also an environment variable ({ENV_PREFIX}CTX_SIZE, …); the command line wins.",
        allow_abbrev=False,
    )
    add_flags(serve_parser)
    settings = read_settings(serve_parser, command.arguments)

    from server.lifecycle import serve  # after the settings: a wrong flag should not wait for torch

    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
