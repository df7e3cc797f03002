"""`gpushard verify`: everything that is stored of an array or a group, checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpushard.cli.failures import EXIT_DAMAGED, EXIT_FAILED, failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import (
    AsJson,
    Debug,
    ShowsProgress,
    print_json,
    print_table,
    print_text,
    say,
)
from gpushard.cli.verify_report import (
    finding_text,
    inner_chunk_text,
    report_rows,
    summary,
    verdict,
    write_report,
)

if TYPE_CHECKING:
    from gpushard.cli.verification import Outcome
    from gpushard.inspection.findings import Finding

# Findings printed; `--json` and `--html` have more.
_MOST_LINES = 50


def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="Array or group.")],
    *,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every inner chunk as well.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="Decode on this device too, such as cuda, and compare with the CPU."
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="First undo writes in place that were cut off (local)."
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as an HTML page, too."),
    ] = None,
    progress: ShowsProgress = None,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Verify every shard index and checksum; tell what is broken where."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        # Imported here, because `--help` needs neither NumPy nor the reader.
        from gpushard.cli.verification import VerifySettings, verify_url

        decodes, options = decode or device is not None, options_of(limit)
        settings = VerifySettings(decodes, device, repair, options)
        outcome = verify_url(url, settings, progress=progress)
    # The verification may have taken hours, so a page that cannot be written must not
    # suppress the printed result, and a full stdout must not suppress the page.
    with failures_in_a_sentence(debug=debug):
        try:
            if as_json:
                print_json(outcome.as_dict())
            else:
                _print(outcome)
        finally:
            if html is not None:
                write_report(html, outcome)
        if outcome.status == "damaged":
            raise typer.Exit(EXIT_DAMAGED)
        if outcome.status == "unverified":
            some = "not everything could be verified."
            say(some if outcome.arrays else "nothing was verified: no array is there.")
            raise typer.Exit(EXIT_FAILED)


def _print(outcome: Outcome) -> None:
    for number, verified in enumerate(outcome.arrays):
        if number:
            print_text("")
        head = ("array", verified.array or outcome.url), ("status", verdict(verified))
        print_table([*head, *report_rows(verified)])
        if verified.findings:
            print_table(
                [_finding_row(found) for found in verified.findings[:_MOST_LINES]]
            )
        if verified.n_findings > _MOST_LINES:
            n_more = verified.n_findings - _MOST_LINES
            print_text(f"... and {n_more:,} more: see --json or --html")
    if len(outcome.arrays) > 1:
        print_text("", f"{outcome.url}: {summary(outcome)}")


def _finding_row(found: Finding) -> tuple[str, ...]:
    return (
        found.severity,
        found.kind,
        found.shard_key,
        inner_chunk_text(found),
        finding_text(found),
    )
