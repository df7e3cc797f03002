"""`gpushard read`: a part of an array, to a file or summed up, checked on request."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpushard.cli.failures import EXIT_DAMAGED, failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import AsJson, Debug, print_json, print_text, say

if TYPE_CHECKING:
    from gpushard.cli.comparison import Mismatch
    from gpushard.cli.reading import Result


def read(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL[SELECTION]",
            help="Array, and a basic index such as [0, :, 60:120, ::-2]; quote it.",
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write an .npy file.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with what zarr-python reads.")
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Show progress on stderr; by default for long reads on a terminal.",
            show_default=False,
        ),
    ] = None,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read a part of an array, to an .npy file or for its figures."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        # Imported here, because `--help` needs neither NumPy nor the reader.
        from gpushard.cli.reading import read_target

        options = options_of(limit)
        result = read_target(
            target, out, verify=verify, progress=progress, options=options
        )
        if as_json:
            print_json(_read_facts(result, out))
        else:
            print_text(*_lines(result, out))
        if result.file_dtype not in (None, result.dtype):
            say(
                f"NumPy's format has no {result.dtype}: {str(out)!r} holds its bytes,"
                f" load it with numpy.load(...).view({str(result.dtype)!r})."
            )
        if result.mismatch is not None:
            say(_mismatch_sentence(result, result.mismatch))
            raise typer.Exit(EXIT_DAMAGED)


def _read_facts(result: Result, out: Path | None) -> dict[str, Any]:
    mismatch = result.mismatch
    return {
        "url": result.url,
        "selection": result.selection,
        "shape": result.shape,
        "dtype": str(result.dtype),
        "nbytes": result.nbytes,
        "seconds": result.seconds,
        "out": None if out is None or mismatch else str(out),
        "verified": mismatch is None if result.is_compared else None,
        "mismatch": None if mismatch is None else asdict(mismatch),
        **result.summary.as_dict(),
    }


def _lines(result: Result, out: Path | None) -> list[str]:
    about = f"{result.dtype} {result.shape}, {result.nbytes:,} bytes"
    if result.mismatch is not None:
        return [about]
    lines = [about if out is None else f"{out}: {about}", str(result.summary)]
    if result.is_compared:
        elements = "element" if result.size == 1 else f"{result.size:,} elements"
        lines.append(f"verified: zarr-python reads the same {elements}")
    return [line for line in lines if line]


def _mismatch_sentence(result: Result, mismatch: Mismatch) -> str:
    where = "" if mismatch.element is None else f", the first at {mismatch.element}"
    kept = "" if result.file_dtype is None else ", and no file was written"
    return (
        f"zarr-python reads {mismatch.n_elements:,} of {result.size:,} elements of"
        f" {result.url} differently{where}: expected {mismatch.expected}, got"
        f" {mismatch.got}; trust neither{kept}."
    )
