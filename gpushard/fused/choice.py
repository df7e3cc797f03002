"""Which way of the host a read takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gpushard.codecs import libzstd
from gpushard.fetching.job import Sink
from gpushard.fused.aside import Aside
from gpushard.fused.boxes import can_cut, landing_of
from gpushard.fused.chain import FusedChain, fused_chain
from gpushard.fused.libraries import find_library, pread_address
from gpushard.fused.runner import BoxRunner, Loops
from gpushard.fused.sink import FusedSink
from gpushard.options import Options
from gpushard.placing.place import HostSink
from gpushard.planning.plan import ReadPlan
from gpushard.source import Source

# Of `Options.compile_nbytes`, what pays for loading loops that were compiled before.
_KEPT_SHARE = 64


class _Suitable:
    """What the process read so far that the loops could have read."""

    nbytes = 0


class _Turn:
    """Who looks for the loops has its lock; `is_loading` while that takes long."""

    lock = threading.Lock()
    is_loading = False


_suitable_reads = _Suitable()
_turn = _Turn()
_aside = Aside()
_loaded: list[Any] = []


def _give_up_loading() -> None:
    """In a forked process, do without what a thread of its parent was just loading.

    It will never be there, and numba's own lock stays with that thread.
    """
    if _turn.is_loading and not _loaded:
        _loaded.append(None)
    _turn.lock, _turn.is_loading = threading.Lock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_loading)


def host_sink(source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]) -> Sink:
    """The fastest sink that reads a plan into arrays on the host.

    Compiled loops are loaded once the reads that they could have done were large enough
    to pay for it, and used by all from then on.
    """
    host = HostSink(plan.parts, outs)
    chain = _suitable(source, plan, outs)
    if chain is None:
        return host
    # Threads may count at the same time: what is lost delays the loading a little.
    _suitable_reads.nbytes += plan.n_chunks * source.chunk_nbytes
    loops = _loops(chain, source.options)
    if loops is None:
        return host
    landings = [
        landing_of(part, out)
        for part, out in zip(plan.parts, outs, strict=True)
        if can_cut(part)
    ]
    return FusedSink(host, BoxRunner(landings, chain, loops, source.room), landings)


def _suitable(
    source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]
) -> FusedChain | None:
    """The array's chain, if the loops can read it into `outs`."""
    if source.room.is_tight or not all(map(can_cut, plan.parts)):
        return None
    dtype = source.layout.dtype
    if any(out.dtype != dtype or not out.dtype.isnative for out in outs):
        return None
    return fused_chain(source)


def are_loaded() -> bool:
    """Whether earlier reads have paid for the compiled loops."""
    return bool(_loaded) and _loaded[0] is not None


def loaded_loops(chain: FusedChain, options: Options) -> Loops | None:
    """Compiled loops for a chain, where earlier reads have paid for them."""
    return _loops(chain, options) if _loaded else None


def _loops(chain: FusedChain, options: Options) -> Loops | None:
    """Compiled loops for a chain, where reads have paid for them.

    None if a library for it is missing, too.
    """
    n_read = _suitable_reads.nbytes
    if n_read < options.compile_nbytes // _KEPT_SHARE:
        return None
    library = find_library(
        chain.kind, is_large=chain.chunk_nbytes >= libzstd.LARGE_NBYTES
    )
    if library is None:
        return None
    compiles = n_read >= options.compile_nbytes
    loaded = _load(compiles=compiles, waits=not options.compile_nbytes)
    return None if loaded is None else Loops(loaded, library, pread_address())


@contextmanager
def _loading() -> Iterator[None]:
    _turn.is_loading = True
    try:
        yield
    finally:
        _turn.is_loading = False


@cache
def _kept() -> Any:
    """The loops as another process compiled them, looked for once; None without."""
    with _loading():
        from gpushard.fused.loading import load_kept

        return load_kept()


def _compiled() -> Any:
    try:
        with _loading():
            from gpushard.fused.loading import load

            return load()
    except ImportError:  # no numba, or one that refuses this NumPy
        return None


def _load(*, compiles: bool = True, waits: bool = True) -> Any:
    """The compiled loops (`loading.Compiled`), loaded once a process; None without.

    None as well until another process has compiled them, unless this one `waits`.
    """
    with _turn.lock:
        if not _loaded and (kept := _kept()) is not None:
            _loaded.append(kept)
        if not _loaded and compiles and (waits or _aside.is_over()):
            _loaded.append(_compiled())
    return _loaded[0] if _loaded else None
