"""Chooses the sink on the host that a read uses, and loads the compiled loops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gpushard.codecs import libzstd
from gpushard.fetching.job import Sink
from gpushard.fused.boxes import can_cut, landing_of
from gpushard.fused.chain import FusedChain, fused_chain
from gpushard.fused.code.compiler_process import CompilerProcess
from gpushard.fused.code.machine_code import is_of_a_moment
from gpushard.fused.libraries import HalfImportedError, find_library
from gpushard.fused.placer import LinkedLoops, PlanPlacer
from gpushard.fused.rows import RowDecoder
from gpushard.fused.sink import FusedSink
from gpushard.fused.system_calls import pread_address
from gpushard.options import KIB, Options
from gpushard.placing.place import HostSink
from gpushard.planning.plan import ReadPlan
from gpushard.source import Source
from gpushard.threads.alone import Alone

if TYPE_CHECKING:
    from gpushard.fused.code.loading import CompiledLoops

# Loops that were compiled before are loaded after this part of
# `Options.compile_nbytes`.
_READY_SHARE = 64
# What a small read counts as: its time is spent in Python, whatever it decodes. Loading
# takes as long as some hundred such reads.
_SMALL_READ_NBYTES = 16 * KIB
# What an inner chunk counts as at least: without the loops each costs Python some
# 0.1 ms, however small it is. As many as have the loops compiled take about as long.
_LEAST_CHUNK_NBYTES = 512


class _ReadCounts:
    """Counts what the process has read and what the loops could have read.

    Attributes
    ----------
    nbytes
        Decoded bytes of all reads but small ones.
    all_nbytes
        The same, and what small reads without the loops count as.
    is_settled
        Whether small reads need not be counted any more.
    """

    nbytes = 0
    all_nbytes = 0
    is_settled = False


class _LoadTurn:
    """Whose turn it is to load the loops; `is_loading` while somebody does."""

    alone = Alone()
    is_loading = False


_counts = _ReadCounts()
_turn = _LoadTurn()
_compiler = CompilerProcess()
_loaded: list[CompiledLoops | None] = []


def _give_up_loading() -> None:
    """Do without the loops in a forked process whose parent was just loading them.

    The thread that was loading them does not exist here, and it still holds numba's
    lock.
    """
    if _turn.is_loading:
        _loaded.append(None)
    _turn.alone, _turn.is_loading = Alone(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_loading)


def host_sink(source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]) -> Sink:
    """The fastest sink that reads a plan into arrays on the host.

    The compiled loops are loaded once the reads that they could have done were large
    enough to pay for that. All later reads use them.
    """
    host = HostSink(plan.parts, outs)
    chain = _suitable(source, plan, outs)
    if chain is None:
        return host
    _count_chunks(source, plan.n_chunks)
    loops = loops_for(chain, source.options)
    if loops is None:
        return host
    landings = [
        landing_of(part, out, source.raw_strides)
        for part, out in zip(plan.parts, outs, strict=True)
    ]
    return FusedSink(host, PlanPlacer(landings, chain, loops, source.room), landings)


def are_casts_lacking(source: Source, outs: Sequence[NDArray[Any]]) -> bool:
    """Whether nothing but the data types of `outs` keeps reads of an array from loops.

    One read has outputs of one data type.
    """
    if _loaded and loaded_loops() is None:
        return False
    chain, dtypes = fused_chain(source), {out.dtype for out in outs}
    if chain is None:
        return False
    return len(dtypes) > 1 or chain.into(dtypes.pop()) is None


def row_decoder(source: Source, n_rows: int) -> RowDecoder | None:
    """What decodes `n_rows` whole inner chunks in the loops; None if they cannot.

    The loops are loaded as `host_sink` has them loaded.
    """
    chain = fused_chain(source)
    if chain is None:
        return None
    _count_chunks(source, n_rows)
    loops = loops_for(chain, source.options)
    return None if loops is None else RowDecoder(chain, loops, source.room)


def note_small_read(source: Source) -> None:
    """Count a small read that was done without the loops, if they could have done it.

    After some tens, loops that an earlier process compiled are loaded. Small reads have
    none compiled, and do not wait for a thread that compiles them.
    """
    if _counts.is_settled:
        return
    chain = fused_chain(source)
    if chain is None or not chain.has_short_ways:
        return
    _counts.all_nbytes += _SMALL_READ_NBYTES
    is_due = _counts.all_nbytes >= source.options.compile_nbytes // _READY_SHARE
    if is_due and not _turn.alone.is_entered:
        _load(compiles=False)
        _counts.is_settled = True


def are_loaded() -> bool:
    """Whether the compiled loops are loaded."""
    return loaded_loops() is not None


def loaded_loops() -> CompiledLoops | None:
    """The compiled loops, if they are loaded."""
    return _loaded[0] if _loaded else None


def loops_for(chain: FusedChain, options: Options) -> LinkedLoops | None:
    """Compiled loops for a chain, if reads have paid for them; else None.

    None also if the library that the chain needs is missing.
    """
    if not _are_due(options):
        return None
    try:
        library = find_library(
            chain.kind, is_large=chain.chunk_nbytes >= libzstd.LARGE_NBYTES
        )
    except OSError as error:
        _refuse_all_but_no_descriptor(error)
        return None
    except HalfImportedError:
        return None
    if library is None:
        return None
    loaded = _load_for(options)
    return None if loaded is None else LinkedLoops(loaded, library, pread_address())


def relay_loops(options: Options, nbytes: int) -> CompiledLoops | None:
    """Compiled loops that relay `nbytes` of files to a device, if reads have paid.

    None also if the loops cannot read files here.
    """
    _count(nbytes)
    if not pread_address() or not _are_due(options):
        return None
    return _load_for(options)


def _suitable(
    source: Source, plan: ReadPlan, outs: Sequence[NDArray[Any]]
) -> FusedChain | None:
    """The array's chain, if the loops can read the plan into `outs`; else None."""
    if not can_cut(plan, outs):
        return None
    chain, dtypes = fused_chain(source), {out.dtype for out in outs}
    if chain is None or len(dtypes) != 1:  # boxes of several parts have one change
        return None
    return chain.into(dtypes.pop())


def _count_chunks(source: Source, n_chunks: int) -> None:
    _count(n_chunks * max(source.chunk_nbytes, _LEAST_CHUNK_NBYTES))


def _count(nbytes: int) -> None:
    """Count decoded bytes. Threads that do at the same time lose some of them."""
    _counts.nbytes += nbytes
    _counts.all_nbytes += nbytes


def _are_due(options: Options) -> bool:
    """Whether loops that were compiled before are worth loading."""
    return _counts.all_nbytes >= options.compile_nbytes // _READY_SHARE


def _load_for(options: Options) -> CompiledLoops | None:
    compiles = _counts.nbytes >= options.compile_nbytes
    return _load(compiles=compiles, waits=not options.compile_nbytes)


def _refuse_all_but_no_descriptor(error: OSError) -> None:
    """Raise `error`, unless no file descriptor was left for an import.

    Then reads go on without loops, with the files that are open, and later ones look
    again.
    """
    if not is_of_a_moment(error):
        raise error


@contextmanager
def _loading() -> Iterator[None]:
    _turn.is_loading = True
    try:
        yield
    finally:
        _turn.is_loading = False


@cache
def _ready_loops() -> CompiledLoops | None:
    """The loops that were compiled before, looked for once; None if there are none."""
    with _loading():
        from gpushard.fused.code.loading import load_ready

        return load_ready()


def _compiled_loops() -> CompiledLoops | None:
    try:
        with _loading():
            from gpushard.fused.code.loading import load

            return load()
    except ImportError:  # no numba, or one that cannot be imported or compiles nothing
        return None


def _load(*, compiles: bool = True, waits: bool = True) -> CompiledLoops | None:
    """The compiled loops, loaded once per process; None if there are none.

    Unless this process `waits`, it is None until another process has compiled them.
    """
    if not _loaded:
        _turn.alone.call(_look_for_loops, compiles, waits)
    return loaded_loops()


def _look_for_loops(compiles: bool, waits: bool) -> None:
    try:
        if not _loaded and (ready := _ready_loops()) is not None:
            _loaded.append(ready)
        if _loaded or not compiles:
            return
        if waits:
            _compiler.wait()
        if waits or _compiler.run_once():
            _loaded.append(_compiled_loops())
    except OSError as error:
        _refuse_all_but_no_descriptor(error)
