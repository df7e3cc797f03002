"""`gpushard bench`: times reads of an array beside the installed libraries."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpushard.cli.failures import EXIT_DAMAGED, failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import (
    AsJson,
    Debug,
    print_json,
    print_table,
    print_text,
    say,
)
from gpushard.options import MIB

if TYPE_CHECKING:
    from gpushard.array import Array
    from gpushard.cli.contenders import Contender
    from gpushard.cli.timing import TimedReads, Timing

_WITHOUT_LOOPS = "ran without its compiled loops"


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="Array.")],
    mib: Annotated[
        int, typer.Option(min=1, help="Most that one read takes, in MiB.")
    ] = 256,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed repetitions.")] = 5,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time reads of an array beside zarr-python, zarrs and tensorstore."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        # Imported here, because `--help` needs neither NumPy nor the readers.
        import gpushard
        from gpushard.cli.diagnosis import are_loops_ready, can_have_loops
        from gpushard.cli.timing import measure

        # The first read waits for the compiled loops, as a process that reads a lot
        # uses them.
        options = options_of(limit).but(compile_nbytes=0)
        array = gpushard.open_array(url, device="cpu", options=options)
        if can_have_loops() and not are_loops_ready():
            say(
                "compiling loops, if the array's codecs are theirs: some 20 seconds ..."
            )
        readers, rows = measure(array, most_nbytes=mib * MIB, repetitions=repetitions)
        has_loops, why = _loops_of(array)
        if as_json:
            print_json(_bench_facts(url, readers, rows) | {"has_loops": has_loops})
        elif not rows:
            print_text("there is nothing to time: the array has no axes or no elements")
        else:
            print_table(_table(readers, rows))
            print_text("")
            about = [(workload.name, workload.description) for workload, _ in rows]
            without = [] if has_loops else [("gpushard", f"{_WITHOUT_LOOPS}{why}")]
            print_table([*about, *without, *_reasons(rows)])
    if any(timing.is_wrong for _, timings in rows for timing in timings):
        raise typer.Exit(EXIT_DAMAGED)


def _loops_of(array: Array) -> tuple[bool, str]:
    """Whether reads of an array ran in the compiled loops, and what is to be said."""
    from gpushard.fused.chain import fused_chain
    from gpushard.fused.choice import are_loaded
    from gpushard.fused.libraries import find_library

    chain = fused_chain(array.source)
    if chain is None:
        return False, ", which do not decode it"
    has_loops = are_loaded() and find_library(chain.kind) is not None
    return has_loops, "; gpushard doctor tells what is missing"


def _bench_facts(
    url: str, readers: list[Contender], rows: list[tuple[TimedReads, list[Timing]]]
) -> dict[str, Any]:
    return {
        "url": url,
        "versions": {contender.name: contender.version for contender in readers},
        "rows": [
            {
                "workload": workload.name,
                "about": workload.description,
                "contenders": {t.contender: t._asdict() for t in timings},
            }
            for workload, timings in rows
        ],
    }


def _table(
    readers: list[Contender], rows: list[tuple[TimedReads, list[Timing]]]
) -> list[tuple[str, ...]]:
    from gpushard.cli.timing import ratio_to_best

    table: list[tuple[str, ...]] = [
        ("median ms", *(contender.name for contender in readers), "best other"),
        ("", *(contender.version for contender in readers), "/ gpushard"),
    ]
    for workload, timings in rows:
        times = [_cell(timing) for timing in timings]
        best = ratio_to_best(timings)
        ratio_text = "" if best is None else f"{best:.2f}"
        table.append((workload.name, *times, ratio_text))
    return table


def _cell(timing: Timing) -> str:
    if timing.wall_s:
        return f"{median(timing.wall_s) * 1e3:.2f}"
    return timing.trouble if timing.is_wrong else "left out"


def _reasons(rows: list[tuple[TimedReads, list[Timing]]]) -> list[tuple[str, ...]]:
    """Libraries that were left out, and why; each once for all workloads."""
    reasons = {
        (timing.contender, f"left out: {timing.trouble}"): None
        for _, timings in rows
        for timing in timings
        if timing.trouble and not timing.is_wrong
    }
    return list(reasons)
