"""Output that all commands share: JSON, text, tables, messages."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from gpushard.errors import StoreError

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

# Lines for another program are never wrapped.
_PIPE_WIDTH = 1_000_000


def say(message: str) -> None:
    """Print a message to the user on stderr, since stdout is for data.

    If stderr accepts nothing, only the exit status tells the user.
    """
    with suppress(OSError):
        typer.echo(f"gpushard: {printable(message)}", err=True)


@contextmanager
def stdout_as_a_store() -> Iterator[None]:
    """Let a full stdout fail like any other place that is written.

    Raises
    ------
    StoreError
        stdout cannot be written.
    BrokenPipeError
        The reader of stdout stopped reading.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(
            f"standard output cannot be written: {error.strerror or error}",
            hint="send it to a place with room for it",
        ) from error


def print_json(facts: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout, valid for all numbers in it."""
    with stdout_as_a_store():
        typer.echo(json.dumps(_strict(facts), indent=2, allow_nan=False))


def print_text(*lines: str) -> None:
    """Print lines on stdout."""
    with stdout_as_a_store():
        for line in lines:
            typer.echo(printable(line))


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns on stdout, wrapped to the width of a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    with stdout_as_a_store():
        console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        with console.capture() as lines:
            console.print(table)
        for line in lines.get().splitlines():
            typer.echo(line.rstrip())


def printable(text: str) -> str:
    """Text without control characters, since anybody may have chosen a name."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _strict(value: Any) -> Any:
    """JSON value with NaN and infinities as strings, in Zarr's spelling."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value
