"""A process that has loaded the command line, and forks to run each command.

What ends in it ends as ``python -m gpushard`` does: the fork is a process of its own,
whose interpreter is shut down in the ordinary way.

Run as ``python tests/warm_cli.py SOCKET``, a file descriptor.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from importlib import import_module
from typing import Self

_MOST_NBYTES = 1 << 16


class WarmCli:
    """Runs commands one after the other, each in a fork of a warm process."""

    def __enter__(self) -> Self:
        self._asking, asked = socket.socketpair()
        with asked:
            paths = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(asked.fileno())],
                pass_fds=[asked.fileno()],
                env=os.environ | {"PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
            )
        self._asking.settimeout(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()
        self._process.wait(timeout=30)

    def start(self, words: list[str], out: int, err: int, *, is_slow: bool) -> int:
        """Begin a command that writes to two file descriptors; returns its process."""
        message = json.dumps([words, is_slow]).encode()
        socket.send_fds(self._asking, [message], [out, err])
        return int(self._asking.recv(_MOST_NBYTES))

    def status(self) -> int:
        """Wait for the command that runs, and return its exit status."""
        return int(self._asking.recv(_MOST_NBYTES))


def _wait_for_a_minute(*_: object, **__: object) -> None:
    import time

    print("reading", file=sys.stderr, flush=True)  # noqa: T201 - the test waits for it
    time.sleep(60)


def _become(words: list[str], streams: list[int], *, is_slow: bool) -> None:
    """Turn this fork into a process that was started with `words`."""
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    # Ignored in processes that a shell has put into the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_slow:
        local = import_module("gpushard.stores.local.store")
        local.LocalStore.read = _wait_for_a_minute
    sys.argv = ["gpushard", *words]


def main() -> None:
    """Serve until nobody asks."""
    package = import_module("gpushard.cli")
    for found in pkgutil.iter_modules(package.__path__, "gpushard.cli."):
        import_module(found.name)
    for name in ("zarr.codecs", "gpushard.codecs.blosc", "ml_dtypes"):
        import_module(name)
    # A fork that ends need not look at what it has not made.
    gc.freeze()
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _MOST_NBYTES, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            break
        for stream in streams:
            os.close(stream)
        asked.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        asked.send(str(os.waitstatus_to_exitcode(status)).encode())
    asked.close()
    words, is_slow = json.loads(message)
    _become(words, streams, is_slow=is_slow)
    package.main()


if __name__ == "__main__":
    main()
