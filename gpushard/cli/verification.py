"""The work behind `gpushard verify`: arrays found, repaired, verified, compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from gpushard.cli.device_comparison import compare_devices
from gpushard.cli.limits import in_words
from gpushard.converting.mark import NAME, has_mark
from gpushard.devices.find import find_device
from gpushard.errors import GpushardError, LimitError, naming
from gpushard.group import Group, node_at, walk
from gpushard.hierarchies.documents import join
from gpushard.inspection.findings import Check, Finding, Verification
from gpushard.inspection.verify import Progress, verify_array
from gpushard.nearby import hinting
from gpushard.options import Options
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.resolve import resolve
from gpushard.writing.maintenance import Repaired, repair_shards


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a verification.

    Attributes
    ----------
    device
        Device that reads everything again for comparison, or None.
    repairs
        Whether interrupted writes in place are undone first.
    """

    decodes: bool
    device: str | None
    repairs: bool
    options: Options


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings in the arrays at an address."""

    url: str
    arrays: list[Verification]
    seconds: float

    @property
    def status(self) -> Literal["whole", "damaged", "unverified"]:
        """The worst status of all arrays; "unverified" if there are none."""
        if not self.arrays:
            return "unverified"
        found = {verified.status for verified in self.arrays}
        if "damaged" in found:
            return "damaged"
        return "unverified" if "unverified" in found else "whole"

    def as_dict(self) -> dict[str, Any]:
        """Plain dict, for JSON."""
        return {
            "url": self.url,
            "status": self.status,
            "arrays": [verified.as_dict() for verified in self.arrays],
            "seconds": self.seconds,
        }


def verify_url(url: str, wanted: Wanted, *, progress: bool | None) -> Outcome:
    """Verify the array, or the arrays of the group, at `url`.

    Progress is shown on stderr; if `progress` is None, on a terminal only. Raises
    `GpushardError` if there is neither, the store fails, or `wanted` cannot be done.
    """
    started = perf_counter()
    with hinting(url):
        store, path = resolve(url)
    is_shown = sys.stderr.isatty() if progress is None else progress
    with naming(store, path), _progress(shown=is_shown) as begin:
        arrays = [
            _verified(store, place, found, wanted, begin)
            for place, found in _arrays(store, path, wanted.options)
        ]
        if path not in {verified.array for verified in arrays}:  # a group
            group = Verification(path)
            _look_for_conversion(store, path, group)
            arrays += [group] if group.findings else []
    return Outcome(url, arrays, perf_counter() - started)


def _arrays(
    store: Store, path: str, options: Options
) -> Iterator[tuple[str, Source | GpushardError]]:
    """Path and source of each array at or below `path`, or why it cannot be opened."""
    with hinting(store, path):
        top = node_at(store, path, options)
    if not isinstance(top, Group):
        yield path, Source.prepare(top, store, options)
        return
    for below, found in walk(top):
        if isinstance(found, GpushardError):
            yield join(top.path, below), found
            continue
        for name in found:
            place = join(top.path, below, name)
            try:
                yield place, found[name].source
            except GpushardError as error:
                yield place, error


def _verified(
    store: Store,
    place: str,
    found: Source | GpushardError,
    wanted: Wanted,
    begin: Callable[[str, int], Progress],
) -> Verification:
    with naming(store, place):
        if isinstance(found, GpushardError):
            return _unread(place, found)
        done = Repaired([], [])
        if wanted.repairs and found.layout.levels:
            done = repair_shards(found)
        label = place or "/"
        progress = begin(label, found.layout.n_objects)
        try:
            result = verify_array(found, decodes=wanted.decodes, progress=progress)
        except LimitError as error:
            return _unread(place, error)
        result.restored = done.restored
        _look_for_conversion(store, place, result)
        if wanted.device is not None:
            device = find_device(wanted.device).device
            progress = begin(f"{label} on {wanted.device}", found.layout.n_objects)
            with suppress(LimitError):  # which is among the findings
                compare_devices(found, device, result, progress)
        lost = {error.shard_key: error for error in done.failed}
        result.findings = [_worded(finding, lost) for finding in result.findings]
        return result


def _look_for_conversion(store: Store, place: str, result: Verification) -> None:
    """Note in `result` that a conversion to `place` is not finished, if so.

    What it has yet to write is missing, which is no damage.
    """
    if not has_mark(store, place):
        return
    hint = "repeat the conversion: it goes on where it stopped"
    what = "a conversion to here is not finished"
    result.checks.append(Check("what is yet to be converted", False, what))
    result.findings.append(Finding("unfinished", NAME, None, 0, what, hint=hint))
    result.n_findings += 1
    result.n_unverified += 1


def _worded(finding: Finding, lost: Mapping[Any, GpushardError]) -> Finding:
    """The finding with a hint for the command line; `lost` are shards not repaired."""
    hint = in_words(finding.hint)
    if finding.kind == "torn" and (why := lost.get(finding.shard_key)):
        hint = f"{why.what}: {why.hint}"
    return replace(finding, hint=hint)


def _unread(place: str, error: GpushardError) -> Verification:
    """Verification of an array that cannot be read, or not within the limits."""
    error.hint = in_words(error.hint)
    unread = Finding.of(error, "", kind="unreadable", n_inner_chunks=0)
    checks = [Check("the array", False, str(error))]
    return Verification(place, checks, {}, [unread], 1, 0, 1)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int], Progress]]:
    """Function that begins a bar on stderr, if `shown`, and returns its callback."""
    if not shown:
        yield lambda _label, _total: lambda _n_objects, _nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} shards"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # A terminal shows the array in progress; a log gets all arrays in the end.
    is_live = console.is_terminal
    with Progress(*columns, console=console, transient=is_live) as bars:

        def begin(label: str, total: int) -> Any:
            for finished in bars.task_ids if is_live else ():
                bars.remove_task(finished)
            task = bars.add_task(label, total=total, rate="")
            started, read = perf_counter(), [0]

            def advance(n_objects: float, nbytes: int) -> None:
                read[0] += nbytes
                rate = read[0] / max(1e-9, perf_counter() - started) / 1e6
                text = f"{rate:,.0f} MB/s" if read[0] else ""
                bars.update(task, advance=n_objects, rate=text)

            return advance

        yield begin
