"""Output that all commands share: JSON, text, tables, messages."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpushard.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ShowsProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress on stderr; by default on a terminal.",
        show_default=False,
    ),
]

_LEAST_WIDTH = 20
# Pieces of JSON that are printed at a time.
_TEXTS_AT_ONCE = 1024
_ENCODER = json.JSONEncoder(indent=2, allow_nan=False)


def say(message: str) -> None:
    """Print a message to the user on stderr, since stdout is for data.

    If stderr accepts nothing, only the exit status tells the user.
    """
    with suppress(OSError):
        typer.echo(f"gpushard: {printable(message)}", err=True)


@contextmanager
def stdout_as_a_store() -> Iterator[None]:
    """Let a full stdout fail like any other place that is written.

    Raises `StoreError` if stdout cannot be written, and `BrokenPipeError` if its reader
    stopped reading.
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
    """Print one JSON object on stdout, valid for all numbers in it.

    A value of `facts` that is an iterator becomes a list, one item in memory at a time.
    """
    with stdout_as_a_store():
        texts = chain(_json_texts(facts), "\n")
        while text := "".join(islice(texts, _TEXTS_AT_ONCE)):
            typer.echo(text, nl=False)


def print_text(*lines: str) -> None:
    """Print lines on stdout."""
    with stdout_as_a_store():
        for line in lines:
            typer.echo(printable(line))


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns on stdout, wrapped to the width of a terminal.

    Without rows nothing is printed, where rich prints an empty line.
    """
    texts = [[printable(cell) for cell in row] for row in rows]
    if not texts:
        return
    with stdout_as_a_store():
        is_terminal = sys.stdout.isatty()
        lines = _wrapped_lines(texts) if is_terminal else _padded_lines(texts)
        for line in lines:
            typer.echo(line.rstrip())


def _padded_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table that is never wrapped, as those for another program are."""
    # rich would print the same but for lone combining marks, in many times the time.
    from rich.cells import cell_len

    widths = [0] * max(map(len, rows))
    for row in rows:
        widths[: len(row)] = map(max, widths, map(cell_len, row))
    for row in rows:
        padded = [
            cell + " " * (width - cell_len(cell))
            for cell, width in zip(row, widths, strict=False)
        ]
        yield "  ".join(padded)


def _wrapped_lines(rows: Iterable[Sequence[str]]) -> Sequence[str]:
    """Lines of a table as wide as the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console = stdout_console()
    with console.capture() as lines:
        console.print(table)
    return lines.get().splitlines()


def stdout_console() -> Console:
    """Console on stdout, wide enough that no text is lost.

    The variable COLUMNS may say 0, and a terminal may have a column or two.
    """
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(_LEAST_WIDTH, console.width)
    return console


def printable(text: str) -> str:
    """Text without control characters, since anybody may have chosen a name.

    Characters that the encoding of stdout lacks are escaped, too.
    """
    if text.isascii() and text.isprintable():
        return text
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _json_texts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Text of a JSON object, in pieces, indented as by `json.dumps`."""
    yield "{"
    between = "\n  "
    for key, value in facts.items():
        yield f"{between}{json.dumps(key)}: "
        between = ",\n  "
        if isinstance(value, Iterator):
            yield from _list_texts(value)
        else:
            yield _indented(value, 2)
    yield "\n}"


def _list_texts(items: Iterator[Any]) -> Iterator[str]:
    """As `_json_texts`, of a list that is a value of the object."""
    between = "[\n    "
    for item in items:
        yield f"{between}{_indented(item, 4)}"
        between = ",\n    "
    yield "[]" if between.startswith("[") else "\n  ]"


def _indented(value: Any, n_spaces: int) -> str:
    """JSON of a value, its lines after the first moved to the right."""
    text = _ENCODER.encode(_strict(value))
    return text.replace("\n", "\n" + " " * n_spaces)


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
