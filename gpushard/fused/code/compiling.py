"""Compiles the loops (numba) to one function that C could call, at an address.

This is imported only if no machine code of the loops is kept yet, because numba takes
half a second and 130 MiB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import binding
from numba import cfunc, config, types

from gpushard.fused.code.machine_code import CPU_LEVEL
from gpushard.fused.columns import (
    AXIS_ROWS,
    CELL_ROWS,
    FIRST_LENGTH,
    NO_FILE,
    SHARD_COLUMNS,
    WORK_AXES,
    WORK_ROWS,
    WORK_WINDOW,
)
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.chunk_files import place_chunk_files
from gpushard.fused.compiled.loops import place_boxes
from gpushard.fused.compiled.planning import plan_axes, plan_boxes, plan_points
from gpushard.fused.compiled.polling import poll
from gpushard.fused.compiled.relaying import relay_pieces, relay_together
from gpushard.fused.words import (
    BOXES,
    COLUMNS,
    IS_PLACED,
    MOST_BOXES,
    N_AXES,
    N_BOXES,
    N_COLUMNS,
    N_PARTS,
    N_SHARDS,
    N_SHARES,
    NEXT_SHARE,
    PLACE_BOXES,
    PLACE_CHUNK_FILES,
    PLAN_AXES,
    PLAN_BOXES,
    POLL,
    READ_AXES,
    READ_BOX,
    RELAY_RANGES,
    RELAY_TOGETHER,
    SHARDS,
    SHARE_CUTS,
    STRIDES,
    TABLE,
    TASK,
    WORDS,
    WORK,
    Decoder,
    Opener,
    PlanParameters,
    Poll,
    Relay,
    Team,
)

if getattr(config, "DISABLE_JIT", False):
    # Then the functions below stay Python's, which no compiled one can call.
    message = "NUMBA_DISABLE_JIT tells numba to compile nothing"
    raise ImportError(message)

_decoder, _planned = calls.tuple_at(Decoder), calls.tuple_at(PlanParameters)
_opener, _relay = calls.tuple_at(Opener), calls.tuple_at(Relay)
_team, _poll = calls.tuple_at(Team), calls.tuple_at(Poll)
_N_DECODER, _N_PLANNED = len(Decoder._fields), len(PlanParameters._fields)


class Compiled(NamedTuple):
    """The compiled function.

    Attributes
    ----------
    address
        Its address in this process.
    name
        Its name in `assembly`.
    assembly
        Its module in LLVM's notation. Empty if numba keeps the function, because numba
        no longer has the module when it loads the function again.
    """

    address: int
    name: str
    assembly: str


@calls.inner
def _place(at: int, strides: Any, boxes: Any) -> None:
    decoder = _decoder(at + 8 * WORDS)
    n = boxes.shape[0]
    work = calls.ints(calls.word(at, WORK), (WORK_ROWS, WORK_AXES))
    is_placed = calls.bools(calls.word(at, IS_PLACED), (n,))
    work[WORK_WINDOW, 0] = NO_FILE
    if calls.word(at, N_SHARES):
        _place_shares(at, decoder, boxes, strides, work, is_placed)
    else:
        place_boxes(decoder, boxes, (0, n), strides, work, is_placed)
    # `copies` may have written past the caches.
    calls.fence()


@calls.inner
def _place_shares(
    at: int, decoder: Decoder, boxes: Any, strides: Any, work: Any, is_placed: Any
) -> None:
    """Claim shares, which other threads claim too, for the time of one call."""
    n_shares, counter = calls.word(at, N_SHARES), calls.word(at, NEXT_SHARE)
    cuts = calls.ints(calls.word(at, SHARE_CUTS), (n_shares + 1,))
    are_files = calls.word(at, TASK) == PLACE_CHUNK_FILES
    n = 0
    while n < calls.word(at, MOST_BOXES):
        claimed = calls.claim(counter)
        if claimed >= n_shares:
            return
        share = cuts[claimed], cuts[claimed + 1]
        if are_files:
            how = decoder, _opener(at + 8 * (WORDS + _N_DECODER))
            place_chunk_files(how, boxes, share, strides, work, is_placed)
        else:
            place_boxes(decoder, boxes, share, strides, work, is_placed)
        n += share[1] - share[0]


@calls.inner
def _are_placed(at: int, n_boxes: int) -> int:
    is_placed = calls.bools(calls.word(at, IS_PLACED), (n_boxes,))
    for k in range(n_boxes):
        if not is_placed[k]:
            return 0
    return 1


@calls.inner
def _plan(at: int, base: int, strides: Any, boxes: Any) -> int:
    n_axes = strides.shape[2]
    shape = calls.word(at, N_SHARDS), SHARD_COLUMNS
    shards = calls.ints(calls.word(at, SHARDS), shape)
    columns, n, table = (
        calls.word(at, COLUMNS),
        calls.word(at, N_COLUMNS),
        calls.word(at, TABLE),
    )
    planned = _planned(at + 8 * WORDS)
    which = calls.word(at, TASK)
    if which == PLAN_BOXES:
        cells = calls.ints(columns, (CELL_ROWS, n))
        ranges = calls.ints(table, (2, len(shards), n_axes))
        plan_boxes(planned, strides, cells, ranges, shards, boxes)
        return 0
    axes = calls.ints(base + table, (AXIS_ROWS, n_axes))
    if which in (PLAN_AXES, READ_AXES):
        elements = calls.ints(columns, (2, n))
        return plan_axes(planned, strides, axes, elements, shards, boxes)
    points = calls.ints(columns, (2 + n_axes, n))
    plan_points(planned, axes, points, shards, boxes)
    return 0


def compiled(stamp: int, *, keeps: bool) -> Compiled:
    """Compile the function, which takes the address of words (`gpushard.fused.words`).

    If `keeps`, numba stores it for other processes. It looks only at this module to see
    whether what it has stored is stale, and at the values that the function refers to.
    One of these is the `stamp`, which changes with the other modules.
    """

    @cfunc(types.int64(types.int64), cache=keeps, **calls.PLAIN_ERRORS)
    def gpushard_loops(at: int) -> int:
        task = calls.word(at, TASK)
        if task == RELAY_RANGES:
            relay_pieces(_relay(at + 8 * WORDS))
            return stamp
        if task == RELAY_TOGETHER:
            relay_together(_team(at + 8 * WORDS))
            return stamp
        if task == POLL:
            return poll(_poll(at + 8 * WORDS))
        n_axes, n_boxes = calls.word(at, N_AXES), calls.word(at, N_BOXES)
        is_read = task in (READ_BOX, READ_AXES)
        base = at if is_read else 0
        shape = 2, calls.word(at, N_PARTS), n_axes
        strides = calls.ints(base + calls.word(at, STRIDES), shape)
        first = calls.word(at, BOXES)
        if task == READ_BOX:
            first += at
        boxes = calls.ints(first, (n_boxes, FIRST_LENGTH + n_axes))
        if task not in (PLACE_BOXES, PLACE_CHUNK_FILES, READ_BOX):
            n_wanted = _plan(at, base, strides, boxes)
            if task != READ_AXES:
                return n_wanted
            n_shards = calls.word(at, N_SHARDS)
            n_boxes = calls.word(calls.word(at, SHARDS), SHARD_COLUMNS * n_shards - 1)
            if n_boxes != n_wanted:
                return 0
            boxes = calls.ints(first, (n_boxes, FIRST_LENGTH + n_axes))
            at += 8 * (WORDS + _N_PLANNED)
        _place(at, strides, boxes)
        return _are_placed(at, n_boxes) if is_read else stamp

    return Compiled(
        gpushard_loops.address or 0,
        gpushard_loops.native_name,
        "" if keeps else gpushard_loops.inspect_llvm(),
    )


def object_of(function: Compiled) -> bytes:
    """Relocatable object file of a compiled function and all it calls."""
    module = binding.parse_assembly(function.assembly)
    for values in (module.functions, module.global_variables):
        for value in values:
            if not value.is_declaration and value.name != function.name:
                value.linkage = "internal"
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=CPU_LEVEL,
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    options = binding.create_pipeline_tuning_options(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    # Three times, as numba may not have optimised the functions that are inlined: the
    # LZ4 decoder is a tenth slower after one turn, and a twentieth after two.
    for _ in range(3):
        passes.getModulePassManager().run(module, passes)
    # numba counts references to arrays. Once functions are inlined, it shows that
    # nobody refers to these. These passes then drop the counting, and with it calls to
    # Python.
    rest = binding.create_new_module_pass_manager()
    rest.add_ipsccp_pass()
    rest.add_global_dead_code_eliminate_pass()
    rest.run(module, passes)
    return machine.emit_object(module)
