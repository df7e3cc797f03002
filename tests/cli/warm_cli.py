"""A process that has loaded the command line, and forks to run each command.

What ends in it ends as ``python -m gpushard`` does: the fork is a process of its own,
whose interpreter is shut down in the ordinary way.

Run as ``python tests/cli/warm_cli.py SOCKET``, a file descriptor.
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
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Self

_MOST_NBYTES = 1 << 16
# A command that hangs is ended: until it has closed its streams, `ended` reads them.
_MOST_S = 120
# What commands load when they run. Not every version of the libraries has all of it.
_LOADED_LATER = (
    *("zarr.codecs", "gpushard.codecs.blosc", "ml_dtypes", "typer._adapters"),
    *("gpushard.stores.zarr.fsspec_store", "gpushard.integrations.zarr.pipeline"),
    *("gpushard.converting.convert", "rich.emoji", "rich.progress", "rich.table"),
)


class WarmCli:
    """Runs commands one after the other, each in a fork of a warm process."""

    def __enter__(self) -> Self:
        # A stream would join a number of a process to the status that follows it.
        self._asking, asked = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with asked:
            paths = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(asked.fileno())],
                pass_fds=[asked.fileno()],
                env=os.environ | {"PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
            )
        self._asking.settimeout(_MOST_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.close()
        self._process.wait(timeout=30)

    def start(
        self,
        words: list[str],
        out: int,
        err: int,
        *,
        is_slow: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> int:
        """Begin a command that writes to two file descriptors; returns its process.

        `variables` are added to its environment.
        """
        message = json.dumps([words, is_slow, dict(variables or {})]).encode()
        socket.send_fds(self._asking, [message], [out, err])
        return int(self._asking.recv(_MOST_NBYTES))

    def ended(
        self,
        *words: object,
        stdout: int | None = None,
        stderr: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> tuple[int, str, str]:
        """Exit status of a command, and what it printed where no stream is given."""
        pipes = [os.pipe(), os.pipe()]
        ends = [
            writing if given is None else given
            for given, (_, writing) in zip((stdout, stderr), pipes, strict=True)
        ]
        self.start([str(word) for word in words], *ends, variables=variables)
        for _, writing in pipes:
            os.close(writing)
        printed: list[str] = []
        for reading, _ in pipes:
            with open(reading, encoding="utf-8") as stream:
                printed.append(stream.read())
        return self.status(), *printed

    def status(self) -> int:
        """Wait for the command that runs, and return its exit status."""
        return int(self._asking.recv(_MOST_NBYTES))


def _wait_for_a_minute(*_: object, **__: object) -> None:
    import time

    print("reading", file=sys.stderr, flush=True)  # noqa: T201 - the test waits for it
    time.sleep(60)


def _become(
    words: list[str], streams: list[int], variables: dict[str, str], *, is_slow: bool
) -> None:
    """Turn this fork into a process that was started with `words`."""
    signal.alarm(_MOST_S)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.update(variables)
    encoding = variables.get("PYTHONIOENCODING")
    if encoding is not None:  # Python looks at it when it starts
        sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
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
    for name in _LOADED_LATER:
        with suppress(ImportError):
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
    words, is_slow, variables = json.loads(message)
    _become(words, streams, variables, is_slow=is_slow)
    package.main()


if __name__ == "__main__":
    main()
