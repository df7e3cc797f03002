"""Which way of the host a read takes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from numpy.typing import NDArray

from gpushard.fused.boxes import Landing, can_cut
from gpushard.fused.chain import FusedChain, fused_chain
from gpushard.fused.libraries import find_library
from gpushard.fused.sink import FusedSink, Loops
from gpushard.job import Sink
from gpushard.place import HostSink
from gpushard.plan import ReadPlan
from gpushard.scatter import GridTarget
from gpushard.source import Source

_loading = threading.Lock()
_loaded: list[Any] = []


def host_sink(source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]) -> Sink:
    """The fastest sink that reads a plan into arrays on the host.

    Compiled loops are loaded by the first read that is large enough to pay for it, and
    used by smaller ones from then on.
    """
    host = HostSink(plan.parts, outs)
    if plan.n_chunks * source.chunk_nbytes < source.options.compile_nbytes:
        return host
    chain = _suitable(source, plan, outs)
    loops = None if chain is None else _loops(chain.kind)
    if chain is None or loops is None:
        return host
    landings = [
        Landing.of(GridTarget(part, out))
        for part, out in zip(plan.parts, outs, strict=True)
        if can_cut(part)
    ]
    return FusedSink(host, landings, chain, loops)


def _suitable(
    source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]
) -> FusedChain | None:
    """The array's chain, if the loops can read it into `outs`."""
    if not all(map(can_cut, plan.parts)):
        return None
    dtype = source.layout.dtype
    if any(out.dtype != dtype or not out.dtype.isnative for out in outs):
        return None
    return fused_chain(source)


def _loops(kind: int) -> Loops | None:
    """Compiled loops for a kind of chain; None if a library for it is missing."""
    library = find_library(kind)
    loaded = None if library is None else _load()
    if library is None or loaded is None:
        return None
    return Loops(*loaded, library.function)


@cache
def _has_numba() -> bool:
    try:
        import gpushard.fused.loops  # noqa: F401 - numba may refuse this NumPy
    except ImportError:
        return False
    return True


def _load() -> tuple[Any, Any] | None:
    """The compiled loop and the type of what it takes, loaded once a process."""
    with _loading:
        if not _loaded and _has_numba():
            from gpushard.fused.loops import Decoder, load_place_boxes

            _loaded.extend((load_place_boxes(), Decoder))
    return (_loaded[0], _loaded[1]) if _loaded else None
