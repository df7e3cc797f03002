"""`gpushard map`: where a shard's inner chunks lie, in a terminal or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpushard.cli.failures import EXIT_DAMAGED, failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import AsJson, Debug, print_json, print_table, say


def map_(
    url: Annotated[str, typer.Argument(metavar="URL", help="Array.")],
    *,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Which one, such as c/0/1 or 0,1; otherwise the first that is stored.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write an .svg, .html or .png."),
    ] = None,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show where a shard's inner chunks lie, how large, in which order."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        # Imported here, because `--help` needs neither NumPy nor the reader.
        from gpushard.cli.mapping import open_map, write_map

        mapped = open_map(url, shard, options_of(limit))
        if out is not None:
            write_map(mapped, out)
        if as_json:
            print_json(mapped.as_dict())
        else:
            print_table(mapped.rows())
            if out is None:
                from gpushard.cli.map_terminal import print_map

                print_map(mapped.shard, mapped.layout)
        if mapped.shard.findings:
            say(_damage(mapped.shard.findings[0], len(mapped.shard.findings)))
            raise typer.Exit(EXIT_DAMAGED)


def _damage(first: Any, n_findings: int) -> str:
    others = f" and {n_findings - 1:,} more findings" if n_findings > 1 else ""
    return f"the shard is damaged: {first.message}{others}; run gpushard verify."
