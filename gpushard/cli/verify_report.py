"""The report of `gpushard verify`, in words for the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushard.cli.files import write_text
from gpushard.cli.page import columns_table, escaped, facts_table, page

if TYPE_CHECKING:
    from gpushard.cli.verification import Outcome
    from gpushard.inspection.findings import Finding, Verification

_COLUMN_NAMES = ("how bad", "what", "shard", "inner chunk", "costs", "story")

# The script hides rows that do not contain the typed text.
_SCRIPT = """
const field = document.querySelector('#filter');
const count = document.querySelector('#shown');
if (field) field.addEventListener('input', () => {
  const wanted = field.value.toLowerCase();
  let shown = 0;
  for (const row of document.querySelectorAll('#findings tbody tr')) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    shown += !row.hidden;
  }
  count.textContent = shown + ' shown';
});
"""


def verdict(verified: Verification) -> str:
    """The result for one array, in a few words."""
    if verified.status == "whole":
        return "whole, as far as was checked"
    if verified.status == "unverified":
        things = "thing" if verified.n_unverified == 1 else "things"
        return f"{verified.n_unverified:,} {things} could not be verified"
    n_findings, n_chunks = verified.n_damage, verified.n_damaged_inner_chunks
    cost = "finding costs" if n_findings == 1 else "findings cost"
    chunks = "inner chunk" if n_chunks == 1 else "inner chunks"
    return f"DAMAGED: {n_findings:,} {cost} {n_chunks:,} {chunks}"


def summary(outcome: Outcome) -> str:
    """The result for all arrays, in a few words."""
    statuses = [verified.status for verified in outcome.arrays]
    n_arrays, n_worst = len(statuses), statuses.count(outcome.status)
    arrays = f"{n_arrays:,} array{'' if n_arrays == 1 else 's'}"
    words = {
        "whole": f"Whole, as far as was checked: {arrays}",
        "damaged": f"Damaged: {n_worst:,} of {arrays}",
        "unverified": f"Not everything could be verified: {n_worst:,} of {arrays}",
    }
    return f"{words[outcome.status]}, in {outcome.seconds:.2f} s"


def report_rows(verified: Verification) -> list[tuple[str, str]]:
    """Counts, checks and restored shards, as labels and texts."""
    counts = verified.counts
    rows: list[tuple[str, str]] = []
    if counts:
        rows += [
            ("shards", _shards_text(counts)),
            ("inner chunks", _chunks_text(counts)),
            ("bytes", _bytes_text(counts, verified.seconds)),
        ]
    rows += [
        ("checked" if check.is_done else "NOT checked", f"{check.what}: {check.how}")
        for check in verified.checks
    ]
    return rows + [("restored", key) for key in verified.restored]


def _shards_text(counts: dict[str, int]) -> str:
    """Number of stored objects, of all objects of the grid, and of unreadable ones."""
    n_all, n_unread = counts["n_shards"], counts["n_unread_shards"]
    n_stored = n_all - counts["n_missing_shards"] - n_unread
    unread = f", {n_unread:,} that could not be read" if n_unread else ""
    return f"{n_stored:,} stored of {n_all:,} in the grid{unread}"


def _chunks_text(counts: dict[str, int]) -> str:
    """Number of stored, of missing, and of checked inner chunks."""
    return (
        f"{counts['n_inner_chunks']:,} stored,"
        f" {counts['n_missing_inner_chunks']:,} missing in stored shards,"
        f" bytes of {counts['n_checked_inner_chunks']:,} checked"
    )


def _bytes_text(counts: dict[str, int], seconds: float) -> str:
    """Stored size, bytes read, and the rate."""
    return (
        f"{counts['stored_nbytes']:,} stored, {counts['unused_nbytes']:,} unused,"
        f" {counts['read_nbytes']:,} of payload read, in {seconds:.2f} s"
    )


def inner_chunk_text(found: Finding) -> str:
    """The inner chunk of a finding, or the whole object."""
    return "-" if found.inner_chunk is None else str(found.inner_chunk)


def finding_text(found: Finding) -> str:
    """What is wrong, with expected and got."""
    sides: tuple[tuple[str, Any], ...] = (
        ("codec", found.codec),
        ("expected", found.expected),
        ("got", found.got),
    )
    facts = [f"{name} {value}" for name, value in sides if value is not None]
    text = found.message + (f" ({', '.join(facts)})" if facts else "")
    return f"{text}; {found.hint}" if found.hint else text


def write_report(path: Path, outcome: Outcome) -> None:
    """Write the report as a page.

    Raises `StoreError` if the file cannot be written.
    """
    heading = f"Verification of {outcome.url}"
    n_findings = sum(verified.n_findings for verified in outcome.arrays)
    body = (
        f"<h1>{escaped(heading)}</h1>"
        f'<p class="badge {_css(outcome.status)}" id="status">'
        f"{escaped(summary(outcome))}</p>"
        f"<h2>Findings ({n_findings:,})</h2>{_findings_html(outcome)}"
        + "".join(map(_array_html, outcome.arrays))
    )
    write_text(path, page(heading, body, script=_SCRIPT))


def _css(status: str) -> str:
    return "damage" if status == "damaged" else status


def _array_html(verified: Verification) -> str:
    rows = [("verdict", verdict(verified)), *report_rows(verified)]
    return f"<h2>{escaped(verified.array or 'the array')}</h2>{facts_table(rows)}"


def _findings_html(outcome: Outcome) -> str:
    findings = [found for verified in outcome.arrays for found in verified.findings]
    if not findings:
        return "<p>None.</p>"
    n_all = sum(verified.n_findings for verified in outcome.arrays)
    more = ""
    if n_all > len(findings):
        more = f"<p>Only the first {len(findings):,} of {n_all:,} are listed.</p>"
    return (
        '<p><label for="filter">Show only rows with </label>'
        '<input id="filter" type="search" autocomplete="off">'
        f' <span id="shown" role="status">{len(findings):,} shown</span></p>{more}'
        + columns_table(_COLUMN_NAMES, _cells(findings), name="findings")
    )


def _cells(findings: list[Finding]) -> Iterator[tuple[str, ...]]:
    for found in findings:
        yield (
            f'<span class="badge {found.severity}">{found.severity}</span>',
            escaped(found.kind),
            escaped(found.shard_key),
            escaped(inner_chunk_text(found)),
            f"{found.n_inner_chunks:,}",
            escaped(finding_text(found)),
        )
