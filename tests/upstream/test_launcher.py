"""The program that stands for llama-server: which model it starts, what it passes on, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.upstream import launcher
from tests.upstream.launcher import STAND_INS, with_local_model

FOLDER = Path("/models")
TIMEOUT_S = 30


@pytest.mark.parametrize("named", STAND_INS)
def test_a_model_to_download_becomes_a_local_file(named: str) -> None:
    repository, _, file = named.partition(" ")
    flags = ["--port", "1", "--hf-repo", repository, *(["--hf-file", file] if file else []), "--no-slots"]
    assert with_local_model(flags, FOLDER) == ["-m", str(FOLDER / STAND_INS[named]), "--port", "1", "--no-slots"]


def test_other_flags_stay_as_they_are() -> None:
    flags = ["--model", "x.gguf", "--api-key", "--hf", "-np", "2"]
    assert with_local_model(flags, FOLDER) == flags


def test_an_unknown_model_is_told() -> None:
    with pytest.raises(SystemExit, match="no file stands for the model some/model"):
        with_local_model(["--hf-repo", "some/model"], FOLDER)


class Warm:
    """What warm.py is to a launcher."""

    def __init__(self, folder: Path, answer: Callable[[socket.socket], None]) -> None:
        self.path = folder / "socket"
        self.message: dict[str, object] = {}
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        self._listener.settimeout(TIMEOUT_S)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with self._listener, connection:
            message, outputs, _, _ = socket.recv_fds(connection, 1 << 20, 2)
            self.message = json.loads(message)
            os.write(outputs[0], b"ready\n")
            for output in outputs:
                os.close(output)
            self._answer(connection)


def launch(path: Path, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start the launcher."""
    command = [sys.executable, "-S", "-E", str(Path(launcher.__file__)), str(path), str(FOLDER), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name: a socket's path has 108 bytes at most."""
    return tmp_path_factory.mktemp("w")


def test_it_passes_on_command_line_environment_output_and_exit_code(folder: Path) -> None:
    warm = Warm(folder, lambda connection: connection.sendall(bytes([7])))
    process = launch(warm.path, "--hf-repo", "ggml-org/test-model-stories260K", "--jinja", COLOUR="red")
    output, _ = process.communicate(timeout=TIMEOUT_S)
    warm.thread.join()
    assert (process.returncode, output) == (7, b"ready\n")
    assert warm.message["arguments"] == ["serve", "-m", str(FOLDER / "random.gguf"), "--jinja"]
    environment = warm.message["environment"]
    assert isinstance(environment, dict)
    assert (environment["COLOUR"], environment["COHORT_METRICS"]) == ("red", "false")


def test_it_passes_signals_on_and_waits_for_the_end(folder: Path) -> None:
    received: list[int] = []

    def end_at_signal(connection: socket.socket) -> None:
        received.extend(connection.recv(1))
        connection.sendall(bytes([0]))

    warm = Warm(folder, end_at_signal)
    process = launch(warm.path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    warm.thread.join()
    assert (process.returncode, received) == (0, [signal.SIGTERM])


def test_without_an_exit_code_it_failed(folder: Path) -> None:
    warm = Warm(folder, lambda connection: None)
    process = launch(warm.path)
    process.communicate(timeout=TIMEOUT_S)
    warm.thread.join()
    assert process.returncode == 1
