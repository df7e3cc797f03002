"""A web server on loopback that is as slow as a network, and counts what it sends.

Every answer waits as long as a network takes to bring the first byte, and each
connection has a bandwidth of its own, as an object store's have. All of them may share
a line, as they do at home. It runs as a process: ``python -m benchmarks.range_server
DIRECTORY LATENCY_MS MB_PER_S LINE_MB_PER_S``. Its first line says the port; each line
that it is sent is answered with what it has sent since the last one, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from benchmarks.process import ROOT

_SLICE_NBYTES = 64 * 1024
_MB = 1_000_000


class Network(NamedTuple):
    """How slow a network is.

    Attributes
    ----------
    name
        What it is like.
    latency_ms
        Time from a request to the first byte of its answer.
    mb_per_s
        Megabytes a second of each connection; 0: as fast as they go.
    line_mb_per_s
        Megabytes a second of all connections together; 0: as fast as they go.
    """

    name: str
    latency_ms: float
    mb_per_s: float
    line_mb_per_s: float = 0


class RangeServer:
    """A running server; a context manager."""

    def __init__(self, directory: Path, network: Network) -> None:
        figures = [str(figure) for figure in network[1:]]
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", __name__, str(directory), *figures],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.url = f"http://127.0.0.1:{self._line()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def sent(self) -> dict[str, int]:
        """Requests that were answered since the last call, and bytes of bodies."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        return self._process.stdout.readline().strip()


class _Service:
    """Answers connections with the files below a directory."""

    def __init__(self, directory: Path, network: Network) -> None:
        self._directory = directory
        self._network = network
        self._line_free = 0.0  # when it has brought all that it was given
        self.n_requests = 0
        self.nbytes = 0

    def sent(self) -> str:
        answer = {"n_requests": self.n_requests, "nbytes": self.nbytes}
        self.n_requests = self.nbytes = 0
        return json.dumps(answer)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one connection, request by request, until its end."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(self._network.latency_ms / 1e3)
                await self._answer(head.decode("latin-1"), writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        fields = {k.lower(): v.strip() for k, _, v in (s.partition(":") for s in lines)}
        self.n_requests += 1
        try:
            file = os.open(self._directory / target.lstrip("/"), os.O_RDONLY)
        except OSError:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        try:
            status = os.fstat(file)
            tag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}"'
            start, stop = _range_in(fields.get("range"), status.st_size)
            told = _head(tag, start, stop, status.st_size, fields)
            writer.write(told.encode("latin-1"))
            if method == "GET" and " 20" in told:
                await self._send(file, start, stop, writer)
        finally:
            os.close(file)

    async def _send(
        self, file: int, start: int, stop: int, writer: asyncio.StreamWriter
    ) -> None:
        """Send a range, a slice at a time, no faster than the connection may."""
        began, at = time.monotonic(), start
        while at < stop:
            part = os.pread(file, min(_SLICE_NBYTES, stop - at), at)
            at += len(part)
            due = self._line_due(len(part))
            if self._network.mb_per_s:
                due = max(due, began + (at - start) / (self._network.mb_per_s * _MB))
            if due:
                await asyncio.sleep(max(0, due - time.monotonic()))
            writer.write(part)
            await writer.drain()
            self.nbytes += len(part)

    def _line_due(self, nbytes: int) -> float:
        """When the line has brought these bytes, too; 0 without a line."""
        if not self._network.line_mb_per_s:
            return 0
        takes_s = nbytes / (self._network.line_mb_per_s * _MB)
        self._line_free = max(self._line_free, time.monotonic()) + takes_s
        return self._line_free


def _range_in(asked: str | None, nbytes: int) -> tuple[int, int]:
    """Half-open range that a header asks of an object of `nbytes` bytes."""
    first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
    if not first:
        return max(0, nbytes - int(last)), nbytes
    return int(first), min(nbytes, int(last) + 1) if last else nbytes


def _head(tag: str, start: int, stop: int, nbytes: int, fields: dict[str, str]) -> str:
    wanted, known = fields.get("if-match", tag), fields.get("if-none-match")
    lines = [f"ETag: {tag}", "Accept-Ranges: bytes"]
    if wanted != tag:
        lines = ["HTTP/1.1 412 Precondition Failed", *lines, "Content-Length: 0"]
    elif known == tag:
        lines = ["HTTP/1.1 304 Not Modified", *lines]
    elif start >= nbytes:
        lines = ["HTTP/1.1 416 Range Not Satisfiable", *lines, "Content-Length: 0"]
    elif "range" in fields:
        told = f"Content-Range: bytes {start}-{stop - 1}/{nbytes}"
        lines = ["HTTP/1.1 206 Partial Content", *lines, told]
        lines.append(f"Content-Length: {stop - start}")
    else:
        lines = ["HTTP/1.1 200 OK", *lines, f"Content-Length: {nbytes}"]
    return "\r\n".join([*lines, "", ""])


async def _serve(service: _Service) -> None:
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=512)
    _say(str(server.sockets[0].getsockname()[1]))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        _say(service.sent())


def _say(line: Any) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    directory, *figures = sys.argv[1:]
    network = Network("", *map(float, figures))
    asyncio.run(_serve(_Service(Path(directory), network)))
