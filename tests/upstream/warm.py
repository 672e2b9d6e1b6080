"""Start servers without the seconds that their imports take: `python -m tests.upstream.warm SOCKET`.

One process imports the server and then waits on a Unix socket. For each connection it forks a process that becomes
`cohort` with the command line, environment, working directory and output of whoever connected, which is launcher.py.
Between the two stands a watcher: it passes signals on, kills the server when the launcher is gone, and tells its exit
code. Nothing of a model is shared: what is loaded before a fork is code.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from server.__main__ import main, set_thread_defaults

_MESSAGE_BYTES = 1 << 20


def serve_forks(path: Path) -> None:
    """Fork a server for each connection, until the process is ended."""
    set_thread_defaults()
    importlib.import_module("server.lifecycle")  # this is what takes the time
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers need no farewell
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(16)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    os._exit(_watch(connection))


def _watch(connection: socket.socket) -> int:
    """Start the server that is asked for and follow it to its end. Return the watcher's own exit code."""
    message, outputs, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
    if not message:
        return 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    server_id = os.fork()
    if server_id == 0:
        connection.close()
        _become_server(json.loads(message), outputs)
    ended = os.pidfd_open(server_id)
    while True:
        ready, _, _ = select.select([connection.fileno(), ended], [], [])
        if ended in ready:
            break
        signals = connection.recv(1)
        os.kill(server_id, signals[0] if signals else signal.SIGKILL)
    _, status = os.waitpid(server_id, 0)
    connection.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    return 0


def _become_server(message: dict[str, object], outputs: list[int]) -> None:
    """Run `cohort` in place of this process."""
    arguments, environment, folder = message["arguments"], message["environment"], message["folder"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    for number, descriptor in enumerate(outputs, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(folder))
    code: object = 1
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:  # of argparse
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve_forks(Path(sys.argv[1]))
