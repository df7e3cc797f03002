"""The result of a verification in words, for the terminal and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushard.cli.verification import Outcome
    from gpushard.inspection.findings import Finding, Verification


def verdict(verified: Verification) -> str:
    """The result for one array, in a few words."""
    if verified.status == "whole":
        return "whole, as far as was checked"
    if verified.status == "unverified":
        return f"{verified.n_unverified:,} things could not be verified"
    n_findings, n_chunks = verified.n_damage, verified.n_damaged_inner_chunks
    cost = "finding costs" if n_findings == 1 else "findings cost"
    chunks = "inner chunk" if n_chunks == 1 else "inner chunks"
    return f"DAMAGED: {n_findings:,} {cost} {n_chunks:,} {chunks}"


def total(outcome: Outcome) -> str:
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


def rows_of(verified: Verification) -> list[tuple[str, str]]:
    """Counts, checks and restored shards, as labels and texts."""
    counts = verified.counts
    rows: list[tuple[str, str]] = []
    if counts:
        rows += [
            ("shards", _shards(counts)),
            ("inner chunks", _chunks(counts)),
            ("bytes", _bytes(counts, verified.seconds)),
        ]
    rows += [
        ("checked" if check.is_done else "NOT checked", f"{check.what}: {check.how}")
        for check in verified.checks
    ]
    return rows + [("restored", key) for key in verified.restored]


def _shards(counts: dict[str, int]) -> str:
    """Number of stored objects, and of all objects of the grid."""
    n_stored = counts["n_shards"] - counts["n_missing_shards"]
    return f"{n_stored:,} stored of {counts['n_shards']:,} in the grid"


def _chunks(counts: dict[str, int]) -> str:
    """Number of stored, of missing, and of checked inner chunks."""
    return (
        f"{counts['n_inner_chunks']:,} stored,"
        f" {counts['n_missing_inner_chunks']:,} missing in stored shards,"
        f" bytes of {counts['n_checked_inner_chunks']:,} checked"
    )


def _bytes(counts: dict[str, int], seconds: float) -> str:
    """Stored size, bytes read, and the rate."""
    return (
        f"{counts['stored_nbytes']:,} stored, {counts['unused_nbytes']:,} unused,"
        f" {counts['read_nbytes']:,} of payload read, in {seconds:.2f} s"
    )


def place(found: Finding) -> str:
    """The inner chunk of a finding, or the whole object."""
    return "-" if found.inner_chunk is None else str(found.inner_chunk)


def story(found: Finding) -> str:
    """What is wrong, with expected and got."""
    sides: tuple[tuple[str, Any], ...] = (
        ("codec", found.codec),
        ("expected", found.expected),
        ("got", found.got),
    )
    told = [f"{name} {value}" for name, value in sides if value is not None]
    text = found.message + (f" ({', '.join(told)})" if told else "")
    return f"{text}; {found.hint}" if found.hint else text
