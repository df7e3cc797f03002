"""What a task is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.gpu import REAL, Machine, open_machine, timed, versions
from benchmarks.gpu.sizes import SIZES, Sizes


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """What a task needs is not here; the message says what."""


@dataclass
class Run:
    """A task's view of a run.

    Attributes
    ----------
    device_name
        What `open_machine` is told.
    sizes_name
        Key of `SIZES`.
    root
        Where arrays are kept between tasks.
    done
        Rows that are there already.
    emit
        Takes a row.
    """

    device_name: str
    sizes_name: str
    root: Path
    done: frozenset[str] = frozenset()
    emit: Callable[[dict[str, Any]], None] = field(repr=False, default=print)

    @property
    def sizes(self) -> Sizes:
        """How much is measured."""
        return SIZES[self.sizes_name]

    @property
    def is_emulated(self) -> bool:
        """Whether there is no GPU."""
        return self.device_name != REAL

    @cached_property
    def machine(self) -> Machine:
        """The machine; opened when it is first asked for."""
        return open_machine(self.device_name)

    def wants(self, name: str) -> bool:
        """Whether a row is still to be found."""
        return name not in self.done

    def put(self, name: str, **found: Any) -> None:
        """Tell a row."""
        self.emit({"id": name, **found})

    def timed(self, stream: int, enqueue: Callable[[], None]) -> list[float]:
        """Seconds that what `enqueue` puts on `stream` takes, several times."""
        return timed(self.machine.device, stream, enqueue, self.sizes.repetitions)


def facts(run: Run) -> None:
    """What is measured on."""
    run.emit({"facts": {**run.machine.facts(), "versions": versions()}})
