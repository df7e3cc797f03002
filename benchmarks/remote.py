"""How long reads over HTTP take, beside the same peers: `python -m benchmarks remote`.

A server on loopback waits before each answer, as a network does
(`benchmarks.range_server`). Every contender opens the array anew, untimed, before each
*first* read, which knows no index; the *next* read, at another place, may know what the
first one has learned.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.configs import DATASETS, KIB, MIB, Config, configs
from benchmarks.machine import commit, load, machine
from benchmarks.process import Process
from benchmarks.range_server import Network, RangeServer
from benchmarks.worker import checksum
from benchmarks.workloads import WORKLOADS, reads_of

# Within a data centre; what object stores are known for (docs/remote.md); and a line of
# 100 Mbit/s that all connections share.
NETWORKS = (
    Network("near", 2, 250),
    Network("object store", 30, 80),
    Network("home line", 40, 0, 12.5),
)
# Seconds after which a contender, once timed, sits out further repetitions of a row.
_BUDGET_S = 4.0
OURS = "gpushard_http"
CONTENDERS = (
    OURS,
    "zarr_fsspec",
    "zarr_obstore",
    "zarr_fused_obstore",
    "zarrs_http",
    "tensorstore_http",
    "tensorstore_http_cached",
)
TURNS = ("first", "next")

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(slots=True)
class _Measured:
    """One workload on one array over one network, for all contenders.

    Who answers wrong, or not at all, is told so in its entry and is not timed.
    """

    config: Config
    workload: str
    values: NDArray[Any]
    server: RangeServer
    url: str
    entries: dict[str, Row]

    def run(self, team: Sequence[Process], repetitions: int) -> None:
        for repetition in range(repetitions + 1):
            turn = repetition % max(1, len(team))
            for contender in [*team[turn:], *team[:turn]]:
                entry = self.entries[contender.name]
                if "refused" not in entry and "wrong" not in entry:
                    timed = entry.get(TURNS[-1], {}).get("wall_s", [])
                    if sum(timed) <= _BUDGET_S:
                        self._reads(contender, entry, repetition)

    def _reads(self, contender: Process, entry: Row, repetition: int) -> None:
        """Both reads of a contender; of the first repetition no time is kept."""
        opened = contender.ask(do="open", path=self.url, shape=self.config.shape)
        if "refused" in opened:
            entry |= opened
            return
        self.server.sent()
        for number, turn in enumerate(TURNS):
            place = 2 * repetition + number
            answer = contender.ask(
                do="run", workload=self.workload, repetition=place, verify=True
            )
            sent = self.server.sent()
            if "refused" in answer:
                entry |= answer
                return
            if answer["crc"] != self._expected(place):
                entry["wrong"] = f"other elements than stored, read {place}"
                return
            if repetition:
                figures = {key: answer[key] for key in ("wall_s", "cpu_s")} | sent
                for name, figure in figures.items():
                    entry.setdefault(turn, {}).setdefault(name, []).append(figure)

    def _expected(self, place: int) -> int:
        reads = reads_of(self.workload, self.config.shape, place)
        return checksum([np.asarray(read.of(self.values)) for read in reads])


class Settings(NamedTuple):
    """What is read, and how often.

    Attributes
    ----------
    nbytes, inner_nbytes, codecs
        Decoded bytes of the arrays and of their inner chunks, and their codecs.
    networks, contenders
        Over what, and by whom: names of modules in `benchmarks.contenders`.
    repetitions
        Timed repetitions of each contender at most.
    """

    nbytes: int = 64 * MIB
    inner_nbytes: Sequence[int] = (32 * KIB, MIB)
    codecs: Sequence[str] = ("none", "zstd")
    networks: Sequence[Network] = NETWORKS
    contenders: Sequence[str] = CONTENDERS
    repetitions: int = 5

    @property
    def configs(self) -> list[Config]:
        """The stored arrays."""
        inner, codecs = tuple(self.inner_nbytes), tuple(self.codecs)
        return configs(DATASETS, inner, codecs, self.nbytes)


def measure(settings: Settings, say: Say = lambda _: None) -> dict[str, Any]:
    """Times, requests and bytes of each contender, with the machine they are of.

    `say` is told each row as soon as it is known, since all take minutes.
    """
    before, rows, versions = load(), list[Row](), dict[str, Any]()
    say(_head(settings.contenders))
    with tempfile.TemporaryDirectory() as directory:
        for config in settings.configs:
            values = data.generate(config.dataset, config.shape)
            path = data.write(config, Path(directory), values)
            for network in settings.networks:
                with RangeServer(Path(directory), network) as server:
                    for row in _rows(config, values, server, settings):
                        versions |= row.pop("versions")
                        rows.append({"network": network._asdict(), **row})
                        for line in _lines(rows[-1], settings.contenders):
                            say(line)
            shutil.rmtree(path)
    return {
        "commit": commit(),
        "machine": machine(),
        "load": [before, load()],
        "nbytes": settings.nbytes,
        "versions": versions,
        "rows": rows,
    }


def _rows(
    config: Config, values: NDArray[Any], server: RangeServer, settings: Settings
) -> Iterator[Row]:
    """A row for each workload."""
    with _started(settings.contenders) as (team, hellos):
        for workload in WORKLOADS[config.dataset]:
            entries: dict[str, Row] = {name: {} for name in settings.contenders}
            for name, hello in hellos.items():
                if "versions" not in hello:
                    entries[name] = {"refused": next(iter(hello.values()))}
            url = f"{server.url}/{config.slug}"
            measured = _Measured(config, workload, values, server, url, entries)
            measured.run(team, settings.repetitions)
            reads = reads_of(workload, config.shape, 1)
            yield {
                "dataset": config.dataset,
                "inner_nbytes": config.inner_nbytes,
                "codec": config.codec,
                "workload": workload,
                "output_nbytes": sum(read.of(values).nbytes for read in reads),
                "versions": {p.name: hellos[p.name]["versions"] for p in team},
                "contenders": entries,
            }


@contextmanager
def _started(
    contenders: Sequence[str],
) -> Iterator[tuple[list[Process], dict[str, Row]]]:
    """Processes of the contenders that are installed, and what each said first."""
    processes = [Process(name) for name in contenders]
    try:
        hellos = {process.name: process.receive() for process in processes}
        yield [p for p in processes if "versions" in hellos[p.name]], hellos
    finally:
        for process in processes:
            process.close()


def _least(row: Row, name: str, turn: str, figure: str = "wall_s") -> float | None:
    entry = row["contenders"].get(name, {})
    return min(entry[turn][figure]) if turn in entry else None


def ratio(row: Row, turn: str) -> float | None:
    """The best peer's time over gpushard's; None without either."""
    times = {name: _least(row, name, turn) for name in row["contenders"]}
    ours = times.pop(OURS, None)
    peers = [time for time in times.values() if time is not None]
    return min(peers) / ours if peers and ours else None


def render(result: dict[str, Any]) -> str:
    """The means of the ratios to the best peer, over each network, as text."""
    lines: list[str] = []
    networks = dict.fromkeys(row["network"]["name"] for row in result["rows"])
    for name in networks:
        rows = [row for row in result["rows"] if row["network"]["name"] == name]
        for turn in TURNS:
            found = [r for row in rows if (r := ratio(row, turn)) is not None]
            if found:
                mean = math.exp(sum(map(math.log, found)) / len(found))
                lines.append(
                    f"{name}, {turn} reads: {mean:.2f} of the best peer in"
                    f" {len(found)} rows, behind in {sum(r < 1 for r in found)}"
                )
    told = {
        f"{name}: {entry[key]}": None
        for row in result["rows"]
        for name, entry in row["contenders"].items()
        for key in ("refused", "wrong")
        if key in entry
    }
    return "\n".join([*lines, *told])


def wrong_answers(result: dict[str, Any]) -> bool:
    """Whether a contender gave other elements than are stored."""
    entries = [e for row in result["rows"] for e in row["contenders"].values()]
    return any("wrong" in entry for entry in entries)


def _head(contenders: Sequence[str]) -> str:
    names = "".join(f"{name:>24}" for name in contenders)
    return f"{'ms (requests, MiB)':45}{names}{'best / ours':>13}"


def _lines(row: Row, contenders: Sequence[str]) -> Iterator[str]:
    """Two lines of the table: of the first read, and of the next."""
    size = f"{row['inner_nbytes'] // KIB}K"
    for turn in TURNS:
        array = f"{row['network']['name']:14}{row['dataset']:6}{size:>6} {row['codec']}"
        cells = "".join(_cell(row, name, turn) for name in contenders)
        found = ratio(row, turn)
        told = "" if found is None else f"{found:13.2f}"
        yield f"{array:30} {row['workload']:9}{turn:5}{cells}{told}"


def _cell(row: Row, name: str, turn: str) -> str:
    wall_s = _least(row, name, turn)
    if wall_s is None:
        entry = row["contenders"][name]
        return f"{'WRONG' if 'wrong' in entry else '-':>24}"
    requests, nbytes = (_least(row, name, turn, f) for f in ("n_requests", "nbytes"))
    return f"{wall_s * 1e3:9.1f} ({requests:4.0f},{(nbytes or 0) / MIB:6.1f})".rjust(24)
