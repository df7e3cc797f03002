"""The compiled loops, ready to call: shipped, kept by a process, or compiled here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from importlib import import_module
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpushard.fused.addresses import address_of
from gpushard.fused.code import kept_code, machine_code
from gpushard.fused.code.elf import MachineCode, NotMovableError, movable_code
from gpushard.fused.columns import laying_words, sorting_words
from gpushard.fused.shares import NO_SHARES, Shares
from gpushard.fused.system_calls import thread_calls, usleep_address
from gpushard.fused.words import (
    PLACE_BOXES,
    PLACE_CHUNK_FILES,
    PLAN_AXES,
    PLAN_BOXES,
    PLAN_POINTS,
    POLL,
    RELAY_RANGES,
    RELAY_TOGETHER,
    WORDS,
    Decoder,
    Opener,
    PlanParameters,
    Poll,
    Relay,
    Team,
    pack_placing,
    pack_planning,
)
from gpushard.selecting.selection import Ints

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
_pack_opening = Struct(f"={WORDS + len(Decoder._fields) + len(Opener._fields)}q").pack
_pack_relay = Struct(f"={WORDS + len(Relay._fields)}q").pack
_pack_team = Struct(f"={WORDS + len(Team._fields)}q").pack
_pack_poll = Struct(f"={WORDS + len(Poll._fields)}q").pack
# What ends the import of a numba that does not fit this Python, NumPy or system. Not
# `Exception`: the handler of a signal may raise one of its own meanwhile.
_MISFITS = (
    *(AssertionError, AttributeError, LookupError, NameError, OSError, RuntimeError),
    *(SyntaxError, SystemError, TypeError, ValueError),
)
_NO_BOXES = (0,) * (WORDS - 1)


class CompiledLoops:
    """The loops, which run without the GIL.

    All arrays that they take are in C order. `gpushard.fused.compiled.loops` and
    `gpushard.fused.compiled.planning` say what the arrays mean.

    Parameters
    ----------
    address
        Address of the compiled function.
    holder
        Object that owns the function's memory.
    """

    def __init__(self, address: int, holder: Any = None) -> None:
        self._address = address
        self._run = _FUNCTION(address)
        self._holder = holder

    def place_boxes(
        self,
        decoder: Decoder,
        boxes: Ints,
        strides: Ints,
        work: Ints,
        is_placed: NDArray[np.bool_],
        shares: Shares | None = None,
    ) -> None:
        """Decode and copy all boxes, or those claimed (see `Shares`)."""
        words = _placing(boxes, strides, work, is_placed, shares)
        self._run(pack_placing(PLACE_BOXES, *words, *decoder))

    def place_chunk_files(
        self,
        how: tuple[Decoder, Opener],
        boxes: Ints,
        strides: Ints,
        work: Ints,
        is_placed: NDArray[np.bool_],
        shares: Shares,
    ) -> None:
        """Claim boxes, and read each from a file (see `chunk_files`)."""
        decoder, opener = how
        words = _placing(boxes, strides, work, is_placed, shares)
        self._run(_pack_opening(PLACE_CHUNK_FILES, *words, *decoder, *opener))

    def read(self, words: bytes) -> bool:
        """Do `READ_BOX` or `READ_AXES`; whether all boxes were placed."""
        return self._run(words) == 1

    def relay(self, relays: Sequence[Relay], turn: int) -> None:
        """Relay pieces in as many threads until none is left.

        `turn` is the address of a mutex (see `words.Team`). No thread is left when
        this returns, and an interrupt waits for that.
        """
        packed = b"".join(_pack_relay(RELAY_RANGES, *_NO_BOXES, *r) for r in relays)
        words = np.frombuffer(packed, np.int64)
        n = len(relays)
        threads = np.empty(n, np.int64)
        team = Team(
            n,
            address_of(words),
            words.nbytes // n,
            self._address,
            address_of(threads),
            turn,
            *thread_calls(),
        )
        self._run(_pack_team(RELAY_TOGETHER, *_NO_BOXES, *team))

    def poll(
        self,
        asked: tuple[int, int, int],
        sleeps: tuple[int, int, int, int],
        in_context: tuple[int, int, int],
    ) -> int:
        """Ask whether something is done; see `devices.waiting.PollLoop`."""
        saved = np.zeros(1, np.int64)
        by = usleep_address()
        poll = Poll(*asked, by, *sleeps, *in_context, address_of(saved))
        return self._run(_pack_poll(POLL, *_NO_BOXES, *poll))

    def plan_boxes(
        self,
        planned: PlanParameters,
        strides: Ints,
        cells: Ints,
        ranges: Ints,
        shards: Ints,
        boxes: Ints,
    ) -> None:
        """Write the boxes of shards (see `planning.plan_boxes`)."""
        n_most = int(ranges[1].prod(axis=1).max(initial=0))
        n_words = sorting_words(n_most, boxes.shape[1])
        self._plan(PLAN_BOXES, planned, n_words, strides, boxes, shards, cells, ranges)

    def plan_axes(
        self,
        planned: PlanParameters,
        strides: Ints,
        axes: Ints,
        elements: Ints,
        shards: Ints,
        boxes: Ints,
    ) -> int:
        """Write boxes; return how many there should be (see `planning.plan_axes`)."""
        n_words = laying_words(len(boxes), len(shards), axes.shape[1])
        return self._plan(
            PLAN_AXES, planned, n_words, strides, boxes, shards, elements, axes
        )

    def plan_points(
        self,
        planned: PlanParameters,
        axes: Ints,
        points: Ints,
        shards: Ints,
        boxes: Ints,
    ) -> None:
        """Write the boxes of points (see `planning.plan_points`)."""
        n_words = sorting_words(*boxes.shape)
        strides = axes[:2].reshape(2, 1, -1)  # only the number of axes is used
        self._plan(PLAN_POINTS, planned, n_words, strides, boxes, shards, points, axes)

    def _plan(
        self, which: int, planned: PlanParameters, n_words: int, /, *arrays: Ints
    ) -> int:
        """Plan with `n_words` to work in; `arrays` come in the order of their words."""
        strides, boxes, shards, columns, table = arrays
        work = np.empty(n_words, np.int64)
        words = (
            which,
            address_of(strides),
            1,
            strides.shape[2],
            address_of(boxes),
            len(boxes),
            address_of(shards),
            len(shards),
            address_of(columns),
            columns.shape[1],
            address_of(table),
        )
        unused = (0,) * (WORDS - len(words))
        planned = planned._replace(work=address_of(work))
        return self._run(pack_planning(*words, *unused, *planned))


def _placing(
    boxes: Ints,
    strides: Ints,
    work: Ints,
    is_placed: NDArray[np.bool_],
    shares: Shares | None,
) -> tuple[int, ...]:
    """The words from 1 on of a task that places boxes (see `words.WORDS`)."""
    _, n_parts, n_axes = strides.shape
    return (
        address_of(strides),
        n_parts,
        n_axes,
        address_of(boxes),
        len(boxes),
        address_of(work),
        address_of(is_placed),
        *(NO_SHARES if shares is None else shares.words),
    )


def load_ready() -> CompiledLoops | None:
    """The loops, if they were compiled before; None if not, or if none may be run."""
    code = ready_code()
    return None if code is None else _runnable(code)


def ready_code() -> MachineCode | None:
    """Code that came with the package, or that another process compiled and kept."""
    return machine_code.find_shipped() or kept_code.find()


def load() -> CompiledLoops | None:
    """The loops: ready before, or compiled now and kept for others if possible.

    None if the system runs no code that this process has written: numba would not
    notice that.

    Raises
    ------
    ImportError
        There is no compiler, or it cannot compile them here.
    """
    return load_ready() or (_compile() if machine_code.may_run() else None)


def _runnable(code: MachineCode) -> CompiledLoops | None:
    mapped = machine_code.map_code(code)
    return None if mapped is None else CompiledLoops(mapped.address, mapped)


def import_numba() -> None:
    """Import the compiler.

    Raises
    ------
    ImportError
        There is none, or one that cannot be imported, whatever it raises. Or the CPU
        is one that the loops do not know.
    OSError
        No file descriptor was left, or the handler of a signal raised a `TimeoutError`.
    """
    # They read stored integers as they lie, and hold addresses in 64 bits.
    if sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise ImportError("the loops are for 64-bit CPUs of little-endian byte order")
    try:
        import_module("numba")
    except _MISFITS as error:
        if isinstance(error, TimeoutError) or machine_code.is_of_a_moment(error):
            raise
        raise ImportError(f"{type(error).__name__}: {error}") from error


def _compile() -> CompiledLoops:
    """The loops by numba.

    Raises
    ------
    ImportError
        As by `import_numba`; or numba cannot compile them, as it may be with a CPU, or
        a version of itself, that nobody has tried.
    """
    import_numba()
    numba_errors = import_module("numba.core.errors")
    try:
        return _compile_by_numba()
    except (numba_errors.NumbaError, NotImplementedError) as error:
        name = type(error).__name__
        raise ImportError(f"numba cannot compile the loops ({name})") from error


def _compile_by_numba() -> CompiledLoops:
    from gpushard.fused.code import compiling

    if kept_code.kept_file() is None:
        try:
            stamp = crc32(machine_code.sources())
            return CompiledLoops(compiling.compiled(stamp, keeps=True).address)
        except (RuntimeError, OSError):
            # numba has no folder, the disk is full, or the program is one file, in
            # which sources are not found.
            return CompiledLoops(compiling.compiled(0, keeps=False).address)
    function = compiling.compiled(0, keeps=False)
    try:
        code = movable_code(compiling.object_of(function), function.name)
    except NotMovableError:
        return CompiledLoops(function.address)
    kept_code.keep(code)
    # This process runs the same code as those that find it on disk.
    return _runnable(code) or CompiledLoops(function.address)
