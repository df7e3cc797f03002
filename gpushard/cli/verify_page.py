"""The result of `gpushard verify` as a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gpushard.cli.files import write_text
from gpushard.cli.page import columns_table, facts_table, page
from gpushard.cli.verify_text import place, rows_of, story, total, verdict

if TYPE_CHECKING:
    from gpushard.cli.verification import Outcome
    from gpushard.inspection.findings import Finding, Verification

_NAMES = ("how bad", "what", "shard", "inner chunk", "costs", "story")

# The script hides rows that do not contain the typed text.
_SCRIPT = """
const field = document.querySelector('#filter');
const told = document.querySelector('#told');
if (field) field.addEventListener('input', () => {
  const wanted = field.value.toLowerCase();
  let shown = 0;
  for (const row of document.querySelectorAll('#findings tbody tr')) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    shown += !row.hidden;
  }
  told.textContent = shown + ' shown';
});
"""


def write_report(path: Path, outcome: Outcome) -> None:
    """Write the page.

    Raises
    ------
    StoreError
        The file cannot be written.
    """
    write_text(path, report_html(outcome))


def report_html(outcome: Outcome) -> str:
    """The page's HTML."""
    heading = f"Verification of {outcome.url}"
    n_findings = sum(verified.n_findings for verified in outcome.arrays)
    body = (
        f"<h1>{escape(heading)}</h1>"
        f'<p class="badge {_css(outcome.status)}" id="status">'
        f"{escape(total(outcome))}</p>"
        f"<h2>Findings ({n_findings:,})</h2>{_findings_html(outcome)}"
        + "".join(map(_array_html, outcome.arrays))
    )
    return page(heading, body, script=_SCRIPT)


def _css(status: str) -> str:
    return "damage" if status == "damaged" else status


def _array_html(verified: Verification) -> str:
    rows = [("verdict", verdict(verified)), *rows_of(verified)]
    return f"<h2>{escape(verified.array or 'the array')}</h2>{facts_table(rows)}"


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
        f' <span id="told" role="status">{len(findings):,} shown</span></p>{more}'
        + columns_table(_NAMES, _rows(findings), name="findings")
    )


def _rows(findings: list[Finding]) -> Iterator[tuple[str, ...]]:
    for found in findings:
        yield (
            f'<span class="badge {found.severity}">{found.severity}</span>',
            escape(found.kind),
            escape(found.shard_key),
            escape(place(found)),
            f"{found.n_inner_chunks:,}",
            escape(story(found)),
        )
