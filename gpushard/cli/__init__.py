"""The command line: `gpushard sample`, `info`, `map`, `verify`, `read`, and others.

Data go to stdout, progress and messages to stderr. Exit status 0: done; 1: stored bytes
are damaged, or zarr-python reads other elements; 2: every other failure; 130:
interrupted; 141: the reader of stdout stopped reading.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import gpushard
from gpushard.cli.bench import bench
from gpushard.cli.convert import convert
from gpushard.cli.doctor import doctor
from gpushard.cli.failures import exit_status
from gpushard.cli.info import info
from gpushard.cli.map import map_
from gpushard.cli.read import read
from gpushard.cli.sample import sample
from gpushard.cli.verify import verify

# Plain help and plain tracebacks: rich costs as much start-up time as typer itself.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (sample, info, map_, verify, read, convert, bench, doctor):
    app.command(command.__name__.rstrip("_"))(command)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"gpushard {gpushard.__version__}")
        raise typer.Exit


@app.callback()
def _gpushard(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and leave.",
        ),
    ] = False,
) -> None:
    """Read and write sharded Zarr v3 arrays."""


def main() -> None:
    """Run the command that the process's arguments name, and exit."""
    sys.exit(exit_status(lambda: app(prog_name="gpushard")))
