"""Python processes that start with torchtitan imported already: forks of one server.

Importing torch and torchtitan takes ten times as long as training a tiny model. :class:`Preloaded`
imports them once and leaves an executable, ``python``, that takes the interpreter's arguments
``[-u] -m module ...``. It hands them, its environment, folder, limits and open files to the server,
which forks a process that runs the module as ``__main__``. The executable passes signals on, ends
as the module ended, and takes the module's process with it when it is killed. With ``PYTHON_EXEC``
set to it, torchrun starts its ranks that way too.
"""

import array
import contextlib
import importlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)
READY = b"ready\n"
PIDS = "PRELOAD_PIDS"  # names a file that gets process and RANK of all that are forked
# Nothing but a few modules of the standard library: this starts in a few hundredths of a second.
CLIENT = """#!{python} -SE
import array, json, os, resource, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
limits = [resource.getrlimit(limit) for limit in {limits!r}]
text = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), limits]).encode()
files = array.array("i", [0, 1, 2])
server.sendmsg([len(text).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(text)
def pass_on(signum, frame):
    try:
        server.sendall(bytes([signum]))
    except OSError:  # what it would be passed on to has ended
        pass

for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(signum, pass_on)
status = server.recv(8)
code = os.waitstatus_to_exitcode(int.from_bytes(status, "big")) if status else 1
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Preloaded:
    """The server, in a process of its own; a context manager.

    Attributes:
        python: Path of the executable.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="preload-")
        address = str(Path(self._folder.name) / "socket")
        self.python = Path(self._folder.name) / "python"
        limits = [int(limit) for limit in LIMITS]
        text = CLIENT.format(python=sys.executable, address=address, limits=limits)
        self.python.write_text(text)
        self.python.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.chaos.preload", address],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            raise RuntimeError("the server that preloads torchtitan did not start")

    def __enter__(self) -> "Preloaded":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; processes that it forked go on."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


def serve(address: str) -> None:
    """Fork a process for every connection to ``address``, until killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(wake, selectors.EVENT_READ)
        os.write(1, READY)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not listener:
                    os.read(wake, 4096)
                    _report(running)
                    continue
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    _become(connection, [listener.fileno(), wake, waker, *_files(running)])
                running[pid] = connection


def _files(running: dict[int, socket.socket]) -> list[int]:
    return [connection.fileno() for connection in running.values()]


def _report(running: dict[int, socket.socket]) -> None:
    """Tell the executables of the processes that have ended how they ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = running.pop(pid)
        with contextlib.suppress(OSError):  # the executable was killed
            connection.sendall(status.to_bytes(4, "big"))
        connection.close()


def _become(connection: socket.socket, not_mine: list[int]) -> None:
    """Run what the connection asks for, in this fresh fork; does not return."""
    code = 1
    try:
        for fd in not_mine:
            os.close(fd)
        os.setsid()
        arguments = _receive(connection)
        threading.Thread(target=_obey, args=(connection,), daemon=True).start()
        while arguments[0] != "-m":
            arguments.pop(0)
        sys.argv = [arguments[1], *arguments[2:]]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _receive(connection: socket.socket) -> list[str]:
    """Take over files, environment, folder and limits; returns the interpreter's arguments."""
    files = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_LEN(3 * files.itemsize))
    files.frombytes(ancillary[0][2])
    for fd, target in zip(files, (0, 1, 2), strict=True):
        os.dup2(fd, target)
        os.close(fd)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += connection.recv(size - len(text))
    arguments: list[str]
    arguments, environment, folder, limits = json.loads(text)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    if PIDS in environment:
        with open(environment[PIDS], "a") as file:
            file.write(f"{os.getpid()} {environment.get('RANK', '-')}\n")
    for limit, values in zip(LIMITS, limits, strict=True):
        resource.setrlimit(limit, tuple(values))
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return arguments


def _obey(connection: socket.socket) -> None:
    """Pass on the signals that the executable got; end with it."""
    while received := connection.recv(1):
        os.kill(os.getpid(), received[0])
    os.kill(os.getpid(), signal.SIGKILL)


def _preload() -> None:
    from titan_integration import cpu

    if cpu.is_cpu_only():
        cpu.patch()
    importlib.import_module("tensorboard")
    import torch.distributed.run  # noqa: F401

    import titan_integration.training.with_odb  # noqa: F401
    from titan_integration.upstream import find

    find("torchtitan.train", "main")  # the import is all that counts


if __name__ == "__main__":
    _preload()
    serve(sys.argv[1])
