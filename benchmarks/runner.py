"""Measures: contenders side by side, repetitions interleaved, equality first."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.process import Process
from benchmarks.worker import checksum
from benchmarks.workloads import MOVING, WORKLOADS, reads_of

if TYPE_CHECKING:
    from benchmarks.configs import Config

Row = dict[str, Any]


class Contender(Protocol):
    """Something that answers a worker's commands."""

    name: str

    def ask(self, **command: Any) -> dict[str, Any]:
        """Answer to a command."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How thoroughly is measured.

    Attributes
    ----------
    contenders
        Names of modules in `benchmarks.contenders`.
    repetitions
        Timed repetitions of each contender at most.
    budget_s
        Seconds after which a contender, once timed, sits out further repetitions.
    cold
        Whether each workload is measured from an empty page cache as well.
    directory
        Where arrays are written for the time of the run; None is the system's.
    """

    contenders: tuple[str, ...]
    repetitions: int
    budget_s: float
    cold: bool = False
    directory: Path | None = None


@dataclass(slots=True)
class Measurement:
    """One workload on one array, for all contenders."""

    path: Path
    config: Config
    workload: str
    cold: bool
    values: NDArray[Any]
    entries: dict[str, Row] = field(default_factory=dict)

    def run(self, contenders: list[Contender], settings: Settings) -> Row:
        """Row of the result.

        Who answers wrong, or not at all, is told so in its entry and is not timed.
        """
        for contender in contenders:
            self._first(contender)
        spent = {c.name: 0.0 for c in contenders}
        for repetition in range(1, settings.repetitions + 1):
            turn = repetition % max(1, len(contenders))
            for contender in contenders[turn:] + contenders[:turn]:
                entry = self.entries[contender.name]
                out_of_time = spent[contender.name] > settings.budget_s
                if "wall_s" not in entry or (out_of_time and entry["wall_s"]):
                    continue
                spent[contender.name] += self._timed(contender, repetition)
        return self._row()

    def _first(self, contender: Contender) -> None:
        """The untimed first read, whose result is compared."""
        answer = self._ask(contender, 0)
        entry = {"wall_s": [], "cpu_s": [], "peak_nbytes": answer.get("peak_nbytes")}
        if "refused" in answer:
            entry = {"refused": answer["refused"]}
        self.entries[contender.name] = entry
        self._compare(contender.name, answer, 0)

    def _timed(self, contender: Contender, repetition: int) -> float:
        answer = self._ask(contender, repetition)
        if "refused" in answer:
            self.entries[contender.name] = {"refused": answer["refused"]}
            return 0.0
        entry = self.entries[contender.name]
        entry["wall_s"].append(answer["wall_s"])
        entry["cpu_s"].append(answer["cpu_s"])
        self._compare(contender.name, answer, repetition)
        return answer["wall_s"]

    def _ask(self, contender: Contender, repetition: int) -> dict[str, Any]:
        if self.cold:
            data.evict(self.path)
            # A new handle: none of its caches outlives the page cache.
            answer = contender.ask(
                do="open", path=str(self.path), shape=self.config.shape
            )
            if "refused" in answer:
                return answer
        return contender.ask(
            do="run",
            workload=self.workload,
            repetition=repetition,
            verify=repetition == 0 or self.workload in MOVING,
        )

    def _compare(self, name: str, answer: dict[str, Any], repetition: int) -> None:
        if "crc" in answer and answer["crc"] != self._expected(repetition):
            where = f"repetition {repetition} of {self.workload}"
            self.entries[name] = {"wrong": f"other elements than stored, {where}"}

    def _expected(self, repetition: int) -> int:
        reads = reads_of(self.workload, self.config.shape, repetition)
        return checksum([np.asarray(read.of(self.values)) for read in reads])

    def _row(self) -> Row:
        reads = reads_of(self.workload, self.config.shape, 1)
        return {
            "dataset": self.config.dataset,
            "inner_nbytes": self.config.inner_nbytes,
            "codec": self.config.codec,
            "is_sharded": self.config.is_sharded,
            "workload": self.workload,
            "cache": "cold" if self.cold else "warm",
            "output_nbytes": sum(read.of(self.values).nbytes for read in reads),
            "stored_nbytes": sum(p.stat().st_size for p in data.files_of(self.path)),
            "contenders": self.entries,
        }


@dataclass(slots=True)
class Suite:
    """A run over many arrays; it gathers rows and who took part."""

    settings: Settings
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def run(self, configs: list[Config], tell: Callable[[str], None]) -> None:
        """Measure every workload on every array, one array at a time."""
        if self.settings.directory is not None:
            self.settings.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.settings.directory) as root:
            values: NDArray[Any] = np.empty(0)
            for i, config in enumerate(configs):
                raw = data.raw_path(Path(root) / config.slug)
                if not raw.exists():
                    values = data.generate(config.dataset, config.shape)
                    np.save(raw, values)
                tell(f"[{i + 1}/{len(configs)}] {config.slug}")
                path = data.write(config, Path(root), values)
                self._array(path, config, values)
                shutil.rmtree(path)

    def _array(self, path: Path, config: Config, values: NDArray[Any]) -> None:
        """Rows of one array."""
        with self._team(path, config) as (team, refusals):
            for workload in WORKLOADS[config.dataset]:
                for cold in (False, True)[: 1 + self.settings.cold]:
                    measurement = Measurement(path, config, workload, cold, values)
                    row = measurement.run(team, self.settings)
                    row["contenders"] |= refusals
                    self.rows.append(row)

    @contextmanager
    def _team(
        self, path: Path, config: Config
    ) -> Iterator[tuple[list[Contender], dict[str, Row]]]:
        """Contenders that have opened the array, and why the others have not."""
        names = [n for n in self.settings.contenders if n not in self.absent]
        processes = [Process(name) for name in names]
        present: list[Process] = []
        team: list[Contender] = []
        refusals: dict[str, Row] = {}
        try:
            for process in processes:
                hello = process.receive()
                if "versions" not in hello:
                    self.absent[process.name] = next(iter(hello.values()))
                    continue
                self.versions[process.name] = hello["versions"]
                present.append(process)
                # Side by side, as opening imports libraries.
                process.send(do="open", path=str(path), shape=config.shape)
            for process in present:
                answer = process.receive()
                if "refused" in answer:
                    refusals[process.name] = answer
                else:
                    team.append(process)
            yield team, refusals
        finally:
            for process in processes:
                process.close()
