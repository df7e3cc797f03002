"""The findings of a verification so far, object by object."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from gpushard.inspection.findings import MOST_FINDINGS, Finding

Coordinate = tuple[int, ...]


class Totals(NamedTuple):
    """Counts of findings: damage, not verified, remarks, and affected inner chunks."""

    damage: int = 0
    unverified: int = 0
    remark: int = 0
    n_inner_chunks: int = 0

    def plus(self, other: Totals) -> Totals:
        """The sum of both."""
        return Totals(*map(add, self, other))

    @classmethod
    def of(cls, finding: Finding) -> Totals:
        """The counts of one finding."""
        lost = finding.n_inner_chunks if finding.is_damage else 0
        return cls(**{finding.severity: 1}, n_inner_chunks=lost)


@dataclass(slots=True)
class _Open:
    """An object that is being verified: its findings, and its remaining work."""

    n_left: int = 1
    totals: Totals = field(default_factory=Totals)
    findings: list[Finding] = field(default_factory=list[Finding])


class Found:
    """Findings of finished objects, and of those that are being verified.

    The findings of an object count once its work is done: until then the object may
    turn out to have been replaced. Not safe for several threads.

    Attributes
    ----------
    totals
        Counts of the findings of finished objects.
    findings
        Findings of finished objects, at most `MOST_FINDINGS` in total.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.findings: dict[Coordinate, list[Finding]] = {}
        self._open: dict[Coordinate, _Open] = {}
        self._n_kept = 0

    def begin(self, coordinate: Coordinate) -> None:
        """Note that an object, perhaps a new one, has one more piece of work."""
        mine = self._open.get(coordinate)
        if mine is None:
            self._open[coordinate] = _Open()
        else:
            mine.n_left += 1

    def note(self, coordinate: Coordinate, finding: Finding) -> None:
        """Note a finding of an object that was begun."""
        mine = self._open[coordinate]
        mine.totals = mine.totals.plus(Totals.of(finding))
        if self._n_kept < MOST_FINDINGS:
            self._n_kept += 1
            mine.findings.append(finding)

    def end(self, coordinate: Coordinate, *, counts: bool) -> None:
        """Note that a piece of work is done; its findings count if `counts`."""
        mine = self._open[coordinate]
        mine.n_left -= 1
        if mine.n_left:
            return
        del self._open[coordinate]
        if not counts:
            self._n_kept -= len(mine.findings)
            return
        self.totals = self.totals.plus(mine.totals)
        if mine.findings:
            self.findings[coordinate] = mine.findings
