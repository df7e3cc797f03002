"""The work behind `gpushard verify`: arrays found, repaired, verified, compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from gpushard.cli.device_comparison import compare_devices
from gpushard.cli.limits import limit_hint
from gpushard.converting.mark import NAME, has_mark
from gpushard.converting.progress import bar_console
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
class VerifySettings:
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


def verify_url(url: str, settings: VerifySettings, *, progress: bool | None) -> Outcome:
    """Verify the array, or the arrays of the group, at `url`.

    Progress is shown on stderr; if `progress` is None, on a terminal only. Raises
    `GpushardError` if there is neither, or the store or the device fails.
    """
    started = perf_counter()
    with hinting(url):
        store, path = resolve(url)
    is_shown = sys.stderr.isatty() if progress is None else progress
    with naming(store, path), _progress_bars(shown=is_shown) as begin:
        arrays = [
            _verify_one(store, place, found, settings, begin)
            for place, found in _arrays_below(store, path, settings.options)
        ]
        if path not in {verified.array for verified in arrays}:  # a group
            group = Verification(path)
            _note_unfinished_conversion(store, path, group)
            arrays += [group] if group.findings else []
    return Outcome(url, arrays, perf_counter() - started)


def _arrays_below(
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


def _verify_one(
    store: Store,
    place: str,
    source: Source | GpushardError,
    settings: VerifySettings,
    begin: Callable[[str, int], Progress],
) -> Verification:
    with naming(store, place):
        if isinstance(source, GpushardError):
            return _unread_result(place, source)
        repaired = Repaired([], [])
        if settings.repairs and source.layout.levels:
            repaired = repair_shards(source)
        label = place or "/"
        progress = begin(label, source.layout.n_objects)
        try:
            result = verify_array(source, decodes=settings.decodes, progress=progress)
        except LimitError as error:
            return _unread_result(place, error)
        result.restored = repaired.restored
        _note_unfinished_conversion(store, place, result)
        if settings.device is not None:
            device = find_device(settings.device).device
            progress = begin(f"{label} on {settings.device}", source.layout.n_objects)
            with suppress(LimitError):  # which is among the findings
                compare_devices(source, device, result, progress)
        not_repaired = {error.shard_key: error for error in repaired.failed}
        result.findings = [
            _with_cli_hint(finding, not_repaired) for finding in result.findings
        ]
        return result


def _note_unfinished_conversion(store: Store, place: str, result: Verification) -> None:
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


def _with_cli_hint(
    finding: Finding, not_repaired: Mapping[Any, GpushardError]
) -> Finding:
    """The finding, with a hint in the words of the command line.

    `not_repaired` has the errors of repairs by the keys of shards.
    """
    hint = limit_hint(finding.hint)
    if finding.kind == "torn" and (why := not_repaired.get(finding.shard_key)):
        hint = f"{why.what}: {why.hint}"
    return replace(finding, hint=hint)


def _unread_result(place: str, error: GpushardError) -> Verification:
    """Verification of an array that cannot be read, or not within the limits."""
    error.hint = limit_hint(error.hint)
    unread = Finding.of(error, "", kind="unreadable", n_inner_chunks=0)
    checks = [Check("the array", False, str(error))]
    return Verification(place, checks, {}, [unread], n_findings=1, n_unverified=1)


@contextmanager
def _progress_bars(*, shown: bool) -> Iterator[Callable[[str, int], Progress]]:
    """Function that begins a bar on stderr, if `shown`, and returns its callback."""
    if not shown:
        yield lambda _label, _total: lambda _n_objects, _nbytes: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} shards"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = bar_console()
    # A terminal shows the array in progress; a log gets all arrays in the end.
    is_live = console.is_terminal
    with Progress(*columns, console=console, transient=is_live) as bars:

        def begin(label: str, total: int) -> Any:
            for finished in bars.task_ids if is_live else ():
                bars.remove_task(finished)
            task = bars.add_task(label, total=total, rate="")
            started, done, read = perf_counter(), [0.0], [0]

            def advance(n_objects: float, nbytes: int) -> None:
                done[0] += n_objects
                read[0] += nbytes
                rate = _rate(done[0], read[0], perf_counter() - started)
                bars.update(task, advance=n_objects, rate=rate)

            return advance

        yield begin


def _rate(n_objects: float, nbytes: int, seconds: float) -> str:
    """How fast it goes, in shards where no payload is read."""
    seconds = max(1e-9, seconds)
    if nbytes:
        return f"{nbytes / seconds / 1e6:,.0f} MB/s"
    return f"{n_objects / seconds:,.0f} shards/s"
