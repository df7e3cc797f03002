"""Connections to web servers that are kept for the next request."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gpushard.stores.http.connecting import Origin, Proxy, connect, proxy_for
from gpushard.stores.http.settings import HttpSettings
from gpushard.stores.http.wire import Wire

if TYPE_CHECKING:
    import socket

_Idle = deque[tuple[Wire, float]]

_MOST_SERVERS = 16


class ConnectionPool:
    """Idle connections of stores with the same settings, in each process its own.

    Safe for several threads, without a lock that a fork could leave taken.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._proxies: dict[Origin, Proxy | None] = {}
        # Process and server -> connections, and since when they are idle.
        self._idle: dict[tuple[int, Origin], _Idle] = {}

    def take(self, origin: Origin) -> Wire | None:
        """The connection that was used last; None if none is usable."""
        idle = self._idle.get((os.getpid(), origin))
        if idle is None:
            self._close_inherited()
            return None
        while idle:
            try:
                wire, idle_since = idle.pop()
            except IndexError:  # another thread was faster
                break
            is_usable = time.monotonic() - idle_since < self._settings.idle_s
            if is_usable and not _has_news(wire.socket):
                return wire
            wire.close()
        return None

    def open(self, origin: Origin) -> Wire:
        """A new connection.

        Raises
        ------
        OSError
            The server cannot be reached.
        UnsupportedError
            The proxy is of a kind that is not supported.
        """
        return connect(origin, self.proxy(origin), self._settings)

    def proxy(self, origin: Origin) -> Proxy | None:
        """The proxy that leads to a server, as the environment said at first.

        Raises
        ------
        UnsupportedError
            It is of a kind that is not supported.
        """
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin, self._settings)
        return self._proxies[origin]

    def put(self, origin: Origin, wire: Wire) -> None:
        """Keep a connection over which another request may be sent."""
        idle = self._idle.setdefault((os.getpid(), origin), deque())
        now = time.monotonic()
        idle.append((wire, now))
        # Each request may be redirected to another server.
        for key in list(self._idle)[:-_MOST_SERVERS]:
            self._close(key)
        try:
            while (
                len(idle) > self._settings.most_idle
                or now - idle[0][1] >= self._settings.idle_s
            ):
                idle.popleft()[0].close()
        except IndexError:  # other threads took the last ones
            pass

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to a server."""
        self._close((os.getpid(), origin))

    def close(self) -> None:
        """Close all idle connections."""
        for key in list(self._idle):
            self._close(key)

    def __del__(self) -> None:
        """Close what nobody can use any more."""
        self.close()

    def _close_inherited(self) -> None:
        """Close what a fork has inherited, or a server would see it open for ever.

        That sends nothing: the parent process has the connection still.
        """
        pid = os.getpid()
        for key in list(self._idle):
            if key[0] != pid:
                self._close(key)

    def _close(self, key: tuple[int, Origin]) -> None:
        idle = self._idle.pop(key, deque())
        with suppress(IndexError):  # that was the last one
            while True:
                idle.pop()[0].close()


_shared: WeakValueDictionary[HttpSettings, ConnectionPool] = WeakValueDictionary()


def connections_of(settings: HttpSettings) -> ConnectionPool:
    """The pool of all stores that have these settings.

    A thousand arrays of one server would else keep a thousand times 40 connections.
    """
    pool = _shared.get(settings)
    if pool is None:  # two threads may both make one, which does no harm
        pool = _shared[settings] = ConnectionPool(settings)
    return pool


def _has_news(connected: socket.socket) -> bool:
    """Whether an idle server closed its end, or sent what nobody asked for.

    A connection that this process has closed counts: an interrupt may come between
    keeping it and knowing that it is kept.
    """
    if connected.fileno() < 0:
        return True
    if hasattr(select, "poll"):
        asked = select.poll()
        asked.register(connected, select.POLLIN)
        return bool(asked.poll(0))
    return bool(select.select([connected], [], [], 0)[0])
