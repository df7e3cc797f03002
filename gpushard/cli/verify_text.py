"""What a verification found, in the words of the terminal and of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushard.cli.verification import Outcome
    from gpushard.inspection.findings import Finding, Verification


def verdict(verified: Verification) -> str:
    """What came out, in a few words."""
    if verified.status == "whole":
        return "whole, as far as was checked"
    if verified.status == "unverified":
        return f"{verified.n_unverified:,} things could not be verified"
    n_findings, n_chunks = verified.n_damage, verified.n_damaged_inner_chunks
    cost = "finding costs" if n_findings == 1 else "findings cost"
    chunks = "inner chunk" if n_chunks == 1 else "inner chunks"
    return f"DAMAGED: {n_findings:,} {cost} {n_chunks:,} {chunks}"


def total(outcome: Outcome) -> str:
    """What came out of all arrays, in a few words."""
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
    """What was counted, checked and restored, as labels and texts."""
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
    """How many stored objects there are, of how many."""
    n_stored = counts["n_shards"] - counts["n_missing_shards"]
    return f"{n_stored:,} stored of {counts['n_shards']:,} in the grid"


def _chunks(counts: dict[str, int]) -> str:
    """How many inner chunks are stored and missing, and how many were read."""
    return (
        f"{counts['n_inner_chunks']:,} stored,"
        f" {counts['n_missing_inner_chunks']:,} missing in stored shards,"
        f" bytes of {counts['n_checked_inner_chunks']:,} checked"
    )


def _bytes(counts: dict[str, int], seconds: float) -> str:
    """How large everything is, and how much of it was read how fast."""
    return (
        f"{counts['stored_nbytes']:,} stored, {counts['unused_nbytes']:,} unused,"
        f" {counts['read_nbytes']:,} of payload read, in {seconds:.2f} s"
    )


def place(found: Finding) -> str:
    """Which inner chunk, or all of the object."""
    return "-" if found.inner_chunk is None else str(found.inner_chunk)


def story(found: Finding) -> str:
    """What is wrong, with both sides of it."""
    sides: tuple[tuple[str, Any], ...] = (
        ("codec", found.codec),
        ("expected", found.expected),
        ("got", found.got),
    )
    told = [f"{name} {value}" for name, value in sides if value is not None]
    text = found.message + (f" ({', '.join(told)})" if told else "")
    return f"{text}; {found.hint}" if found.hint else text
