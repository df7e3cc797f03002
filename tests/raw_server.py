"""A server on loopback that answers requests with whatever bytes a test gives it.

with RawServer(lambda request, nth: [sized(b"body")]) as server:
    ...
    assert server.n_connections == 1
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl

Pieces = Iterable[bytes | None]


def sized(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer whose head tells the size of its body."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@contextmanager
def unanswering() -> Iterator[tuple[str, int]]:
    """Address of a listener with a full queue; on Linux what comes is dropped."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        ExitStack() as queue,
    ):
        for _ in range(3):
            one = queue.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        yield silent.getsockname()


class RawServer:
    """Answers the requests of each connection in a thread of its own.

    Parameters
    ----------
    answer
        Called with a request's bytes and with how many came before it; returns the
        pieces of an answer. A piece of None ends the connection.
    tls
        Context of a server, if it has TLS.

    Attributes
    ----------
    requests
        Every request so far.
    n_connections
        How many connections were accepted.
    """

    def __init__(
        self,
        answer: Callable[[bytes, int], Pieces],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answer = answer
        self._tls = tls
        self._connected: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.n_connections = 0

    @property
    def url(self) -> str:
        """Address of the root."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connected:
            with suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            self._connected.append(connection)
            serve = threading.Thread(
                target=self._serve, args=(connection,), daemon=True
            )
            self._threads.append(serve)
            serve.start()

    def _serve(self, connection: Any) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connected.append(connection)
            while self._serve_one(connection):
                pass
        except OSError:  # who asked has had enough of it
            pass
        finally:
            connection.close()

    def _serve_one(self, connection: socket.socket) -> bool:
        """Answer a request; whether to wait for another one."""
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            more = connection.recv(1 << 16)
            if not more:
                return False
            request += more
        self.requests.append(request)
        for piece in self._answer(request, len(self.requests) - 1):
            if piece is None:
                return False
            connection.sendall(piece)
        return True
