"""The findings and checks of a verification: those so far, and its result."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpushard.errors import ChecksumError, CorruptShardError, GpushardError

Kind = Literal[
    # Damage: elements are lost.
    "index",
    "torn",
    "bounds",
    "size",
    "checksum",
    "decode",
    "device",
    # Not verified.
    "unreadable",
    "changed",
    "unfinished",
    # Legal, but worth a look.
    "overlap",
    "note",
]
UNVERIFIED: frozenset[Kind] = frozenset(("unreadable", "changed", "unfinished"))
REMARKS: frozenset[Kind] = frozenset(("overlap", "note"))

# Findings kept of a verification, since a hostile archive can cause any number.
MOST_FINDINGS = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect, or something worth a look.

    Attributes
    ----------
    shard_key
        Key of the stored object.
    inner_chunk
        Coordinate in the array's grid of inner chunks; None means the object or its
        index.
    n_inner_chunks
        Number of inner chunks that are affected; 0 for remarks.
    message
        What is wrong, without where.
    codec, expected, got, hint
        As in `GpushardError`.
    """

    kind: Kind
    shard_key: str
    inner_chunk: tuple[int, ...] | None
    n_inner_chunks: int
    message: str
    codec: str | None = None
    expected: str | None = None
    got: str | None = None
    hint: str | None = None

    @classmethod
    def of(
        cls,
        error: GpushardError,
        shard_key: str,
        *,
        inner_chunk: tuple[int, ...] | None = None,
        kind: Kind | None = None,
        n_inner_chunks: int = 1,
    ) -> Finding:
        """Finding for `error`, of a kind that fits it unless one is given."""
        if kind is None:
            kind = "checksum" if isinstance(error, ChecksumError) else "decode"
            if not isinstance(error, CorruptShardError):
                kind = "unreadable"
        return cls(
            kind,
            shard_key,
            inner_chunk,
            n_inner_chunks,
            error.what,
            error.codec,
            _text(error.expected),
            _text(error.got),
            error.hint,
        )

    @property
    def is_damage(self) -> bool:
        """Whether elements are lost."""
        return self.severity == "damage"

    @property
    def severity(self) -> Literal["damage", "unverified", "remark"]:
        """Severity of the finding."""
        if self.kind in UNVERIFIED:
            return "unverified"
        return "remark" if self.kind in REMARKS else "damage"

    def as_dict(self) -> dict[str, Any]:
        """Plain dict, for JSON."""
        return {"severity": self.severity, **asdict(self)}


def _text(fact: Any) -> str | None:
    return None if fact is None else str(fact)[:500]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that can be verified, whether it was, and how, or why not."""

    what: str
    is_done: bool
    how: str


@dataclass
class Verification:
    """The result of a verification of one array.

    Attributes
    ----------
    array
        Path of the array; "" is the root.
    counts
        `n_shards` in the grid, `n_missing_shards`, `n_unread_shards` of which nothing
        is known, `n_indexes`, `n_inner_chunks` stored, `n_missing_inner_chunks` in
        stored shards, `n_checked_inner_chunks` whose bytes were checked,
        `stored_nbytes`, `payload_nbytes`, `unused_nbytes`, `read_nbytes`.
    findings
        In the order of the grid, at most `MOST_FINDINGS`.
    n_findings, n_damaged_inner_chunks
        Counts of all findings, kept or not.
    restored
        Keys of shards whose last published index was restored.
    """

    array: str
    checks: list[Check] = field(default_factory=list[Check])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[Finding] = field(default_factory=list[Finding])
    n_findings: int = 0
    n_damage: int = 0
    n_unverified: int = 0
    n_damaged_inner_chunks: int = 0
    restored: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    @property
    def status(self) -> Literal["whole", "damaged", "unverified"]:
        """Summary of the findings."""
        if self.n_damage:
            return "damaged"
        return "unverified" if self.n_unverified else "whole"

    def as_dict(self) -> dict[str, Any]:
        """Plain dict, for JSON."""
        return {
            "array": self.array,
            "status": self.status,
            "checks": [asdict(check) for check in self.checks],
            "counts": self.counts,
            "n_findings": self.n_findings,
            "n_damaged_inner_chunks": self.n_damaged_inner_chunks,
            "findings": [finding.as_dict() for finding in self.findings],
            "restored": self.restored,
            "seconds": self.seconds,
        }


@dataclass(slots=True)
class _Open:
    """An object that is being verified: its findings, and its remaining work."""

    n_left: int = 1
    totals: Counter[str] = field(default_factory=Counter[str])
    findings: list[Finding] = field(default_factory=list[Finding])


class FindingsSoFar:
    """Findings of finished objects, and of those that are being verified.

    The findings of an object count once its work is done: until then the object may
    turn out to have been replaced. `totals` counts those of finished objects, by
    severity, and their "damaged inner chunks" and "checked inner chunks"; `findings`
    has them, at most `MOST_FINDINGS` in total. Not safe for several threads.
    """

    def __init__(self) -> None:
        self.totals = Counter[str]()
        self.findings: dict[tuple[int, ...], list[Finding]] = {}
        self._open: dict[tuple[int, ...], _Open] = {}
        self._n_kept = 0

    def begin(self, coordinate: tuple[int, ...]) -> None:
        """Note that an object, perhaps a new one, has one more piece of work."""
        mine = self._open.get(coordinate)
        if mine is None:
            self._open[coordinate] = _Open()
        else:
            mine.n_left += 1

    def note(self, coordinate: tuple[int, ...], finding: Finding) -> None:
        """Note a finding of an object that was begun."""
        mine = self._open[coordinate]
        mine.totals[finding.severity] += 1
        if finding.is_damage:
            mine.totals["damaged inner chunks"] += finding.n_inner_chunks
        if self._n_kept < MOST_FINDINGS:
            self._n_kept += 1
            mine.findings.append(finding)

    def check(self, coordinate: tuple[int, ...], n_chunks: int) -> None:
        """Note that inner chunks of an object that was begun were checked."""
        self._open[coordinate].totals["checked inner chunks"] += n_chunks

    def end(self, coordinate: tuple[int, ...], *, counts: bool) -> None:
        """Note that a piece of work is done; its findings count if `counts`."""
        mine = self._open[coordinate]
        mine.n_left -= 1
        if mine.n_left:
            return
        del self._open[coordinate]
        if not counts:
            self._n_kept -= len(mine.findings)
            return
        self.totals += mine.totals
        if mine.findings:
            self.findings[coordinate] = mine.findings
