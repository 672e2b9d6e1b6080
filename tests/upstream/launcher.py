"""The program that llama.cpp's tests take for llama-server: `launcher.py SOCKET MODELS FLAGS…`.

It has warm.py start `cohort serve` with the flags as they come, and then behaves as that process would. Models that the
tests would have downloaded are replaced by the files that stand for them in the folder MODELS, and /metrics is off
unless asked for, as in llama-server; nothing else is changed. It imports nothing but the standard library, to be quick.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

RANDOM, STORYTELLER = "random.gguf", "storyteller.gguf"
STAND_INS = {
    "ggml-org/test-model-stories260K": RANDOM,
    "ggml-org/test-model-stories260K-infill": RANDOM,
    "ggml-org/models bert-bge-small/ggml-model-f16.gguf": RANDOM,
    "ggml-org/stories15M_MOE stories15M_MOE-F16.gguf": STORYTELLER,
}
"""Which file stands for a repository, or for one file of it."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_DOWNLOADS = ("--hf-repo", "--hf-file")


def with_local_model(flags: Sequence[str], folder: Path) -> list[str]:
    """Return `flags` with `-m FILE` in place of what names a model to download.

    Raises SystemExit where no file stands for that model.
    """
    kept: list[str] = []
    named: dict[str, str] = {}
    rest = iter(flags)
    for flag in rest:
        if flag in _DOWNLOADS:
            named[flag] = next(rest, "")
        else:
            kept.append(flag)
    if not named:
        return kept
    model = " ".join(named[flag] for flag in _DOWNLOADS if flag in named)
    if model not in STAND_INS:
        raise SystemExit(f"no file stands for the model {model}")
    return ["-m", str(folder / STAND_INS[model]), *kept]


def run(path: Path, arguments: Sequence[str]) -> int:
    """Have `cohort` started with these arguments, pass signals on to it, and return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:

        def pass_on(number: int, _frame: FrameType | None) -> None:
            connection.send(bytes([number]))

        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # one that comes before the message comes after it
        connection.connect(str(path))
        environment = {"COHORT_METRICS": "false"} | os.environ
        message = {"arguments": list(arguments), "environment": dict(environment), "folder": str(Path.cwd())}
        socket.send_fds(connection, [json.dumps(message).encode()], [1, 2])
        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        code = connection.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    socket_path, models, *given = sys.argv[1:]
    sys.exit(run(Path(socket_path), ["serve", *with_local_model(given, Path(models))]))
