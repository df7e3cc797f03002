"""Histories of an array on an emulated device.

As `histories`, and: outputs and written values lie on the device and are used by work
of several streams; loaders have several loads under way; memory runs out, reads are
interrupted, and devices break. All that is read is complete when it is returned, and
nothing of gpushard is under way between two steps.
"""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import zarr
from numpy.typing import NDArray

import gpushard
from fuzz import histories
from fuzz.histories import History
from fuzz.history_arrays import Output
from fuzz.history_devices import DeviceOutput, Gpu, may_be_lost
from fuzz.history_documents import document_for_devices
from fuzz.history_keys import Chosen, Doubt, n_cells, region
from fuzz.refusals import assert_is_told
from gpushard import GpushardError, Options
from gpushard.device_reading import by_host, relayed, sink
from gpushard.errors import UnsupportedError
from gpushard.loader import reading

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_CASTS = {"b": "u1", "u": "i4", "i": "f8", "f": "f8"}
_PLACEMENTS = ("device", "device", "cost", "host")
_KINDS = (("allocate",), ("pinned",), ("launch",), ("allocate", "pinned", "launch"))


class DeviceHistory(History):
    """See `History`.

    Attributes
    ----------
    gpu
        The device.
    """

    may_be_historic = False

    def __init__(self, seed: int, place: Any) -> None:
        self.gpu = Gpu(random.Random(f"device {seed}"))
        self.lent: list[DeviceOutput] = []
        super().__init__(seed, place)

    @staticmethod
    def circumstances(seed: int) -> Iterator[AbstractContextManager[Any]]:
        """Small bounds of what a device does."""
        rng = random.Random(f"circumstances of a device {seed}")
        if rng.random() < 0.7:
            yield mock.patch.object(by_host, "_DEVICE_READ_S", 0.0)
        if rng.random() < 0.5:
            yield mock.patch.object(sink, "MAX_ROWS", rng.choice((1, 2, 7)))
            yield mock.patch.object(sink, "_LEAST_NBYTES", 1)
        if rng.random() < 0.5:
            yield mock.patch.object(relayed, "_SHARE_NBYTES", 1)
            yield mock.patch.object(relayed, "_LEAST_PIECE_NBYTES", 64)
            yield mock.patch.object(relayed, "_PIECE_NBYTES", 128)
            yield mock.patch.object(relayed, "usable_cpu_count", return_value=4)
        if rng.random() < 0.7:
            yield mock.patch.object(reading, "LOAD_NBYTES", rng.choice((50, 500)))
        yield mock.patch.object(histories, "_CASTS", _CASTS)
        yield zarr.config.set({"array.rectilinear_chunks": True})

    def run(self, steps: Sequence[int]) -> None:
        """Do the steps of these numbers, and look at what is left at the end."""
        super().run(steps)
        self.leave()

    def close(self) -> None:
        """Undo what was patched for the device."""
        self.gpu.close()

    def steps(self) -> dict[str, float]:
        """Names of the steps, and how often each is done."""
        return STEPS

    def document(self) -> tuple[dict[str, Any], bool]:
        """See `document_for_devices`."""
        return document_for_devices(self.rng)

    def opened(self, target: Any, options: Options) -> gpushard.Array:
        """The array on the device."""
        rng = self.rng
        options = options.but(
            placement=rng.choice(_PLACEMENTS),
            relay=rng.random() < 0.8,
            pinned_slots=rng.choice((1, 2, 4)),
        )
        return gpushard.open_array(target, device=self.gpu.named, options=options)

    def output(self, shape: tuple[int, ...], dtype: Any) -> DeviceOutput:
        """Device memory to read into."""
        return DeviceOutput(self.gpu, Output(self.arena, self.rng, shape, dtype))

    def on_host(self, result: Any) -> Any:
        """Elements of a result, without waiting for anything."""
        return self.gpu.on_host(result)

    def may_refuse(self, error: GpushardError, outs: Sequence[Any]) -> bool:
        """Whether memory ran out, the device broke, or the host had to read."""
        is_strided = not all(out.is_contiguous for out in outs)
        is_for_host = isinstance(error, UnsupportedError) and is_strided
        return may_be_lost(error, self.gpu) or is_for_host

    # ---- reads

    def _a_read(self, doubt: Doubt) -> Callable[[], None]:
        read, rng = super()._a_read(doubt), self.rng
        (_, outs), how = read.args[1:3]
        current, given, named = rng.choices(self.gpu.streams, k=3)
        is_given = bool(how) and rng.random() < 0.4
        is_named = rng.random() < 0.5
        for out in outs:
            used = given if is_given else named if is_named else current
            out.begin(used, is_named=is_named and not is_given)
        if is_given:
            how["stream"] = given
        how["current"] = current
        return read

    def _check_read(
        self, some: list[Chosen], into: tuple[Any, list[Any]], how: Any, doubt: Doubt
    ) -> None:
        how = how.copy()
        with self.gpu.current(how.pop("current")):
            super()._check_read(some, into, how, doubt)

    def read(self) -> None:
        """Read in one thread or several; nothing is under way behind it."""
        super().read()
        self.check_quiet()

    def starve(self) -> None:
        """Read while memory runs out now and then."""
        kinds, often = self.rng.choice(_KINDS), self.rng.choice((0.02, 0.1, 0.5))
        chance, device = random.Random(self.rng.getrandbits(32)), self.gpu.device
        refuses = device.refuses
        device.refuses = lambda kind, _: kind in kinds and chance.random() < often
        try:
            self._in_trouble()
        finally:
            device.refuses = refuses

    def _in_trouble(self) -> None:
        self.rng.choice((self.read, self.read, self.load, self._fail_to_write))()

    def interrupt(self) -> None:
        """Interrupt a wait of a read, of a load or of a write; then all is over."""
        device, way = self.gpu.device, self.rng.choice(("read", "read", "load", ""))
        device.interrupted_in = self.rng.choice((self.rng.randrange(12), 0, 40))
        outs: list[Any] = []
        try:
            if way == "read":
                self.mend()
                doubt = Doubt(np.zeros(self.want.shape, np.bool_), self.want)
                read: Any = self._a_read(doubt)
                outs = read.args[1][1]
                read()
            elif way == "load":
                self.load()
            else:
                self._fail_to_write()
        except KeyboardInterrupt:
            device.interrupted_in = None
            for out in outs:
                out.check_rest()
        finally:
            device.interrupted_in = None
        self.check_quiet()

    def lose(self) -> None:
        """Read while the device breaks; then go on with another one."""
        device = self.gpu.device
        last = device.n_runs + self.rng.randrange(300)
        device.breaks = lambda n: n >= last
        try:
            self._in_trouble()
        finally:
            device.breaks = lambda _: False
        if device.is_broken:
            self.gpu.close()
            self.gpu = Gpu(self.rng)
            self.array = self.opened(self.target, histories.random_options(self.rng))

    def reopen(self) -> None:
        """Go on with an array that was opened with other options."""
        self.array = self.opened(self.target, histories.random_options(self.rng))

    def load(self) -> None:
        """Take batches of a loader, and use them late."""
        rng = self.rng
        if rng.random() < 0.7:
            self.mend()
        how = {
            "batch_size": rng.choice((1, 2, 3, 8)),
            "shuffle": rng.random() < 0.6,
            "seed": rng.randrange(9),
            "prefetch_factor": rng.choice((0, 1, 2, 3)),
            "num_threads": rng.choice((None, 1, 2)),
            "on_error": rng.choice(("raise", "skip")),
        }
        if how["shuffle"]:
            how["block"] = rng.choice((None, "chunk", "shard"))
        if rng.random() < 0.3:
            how["epochs"] = 2
        if rng.random() < 0.3:
            how["dtype"] = _CASTS[self.want.dtype.kind]
        stream, most = rng.choice(self.gpu.streams), rng.choice((1, 5, 1000))
        with self.gpu.current(stream):
            self._take_batches(how, stream, most)
        for thread in threading.enumerate():
            if thread.name.startswith("gpushard-loader"):  # of one that was broken off
                thread.join(60)
        self.check_quiet()

    def _take_batches(self, how: dict[str, Any], stream: int, most: int) -> None:
        array, full = self._to_load(how)
        dtype, wrong = how.get("dtype", full.dtype), list[Any]()
        used = self.gpu.queue(stream, lambda: None)
        held: list[tuple[Any, Any]] = []
        try:
            with gpushard.Loader(array, return_index=True, **how) as loader:
                for _ in range(how.get("epochs", 1)):
                    for n, (batch, index) in enumerate(loader):
                        want = full[index].astype(dtype)
                        used = self._use(batch, want, stream, wrong)
                        if self.rng.random() < 0.2:
                            held.append((batch, want))
                        if n > most:
                            break
        except GpushardError as error:
            if not (self.hurt or may_be_lost(error, self.gpu)):
                raise
            assert_is_told(error)
        except KeyboardInterrupt:
            pass
        # A batch that is dropped on another stream is not known to be used here.
        self.gpu.device.interrupted_in = None
        for batch, want in held:
            assert np.array_equal(self.on_host(batch), want), "a batch that is held"
        self.gpu.is_done(used)
        assert not wrong, "a batch that is used late"

    def _to_load(self, how: dict[str, Any]) -> tuple[Any, NDArray[Any]]:
        """What is loaded, and its samples: rows or windows, maybe of joined arrays."""
        array, full = self.array, self.want
        if self.rng.random() < 0.25:
            options = histories.random_options(self.rng)
            host = gpushard.open_array(self.target, device="cpu", options=options)
            array = gpushard.concat([host, host])
            full = np.concatenate([full, full])
            how["device"] = self.gpu.named
        n_rows = self.rng.choice((1, 2, 3))
        if self.rng.random() < 0.3 and len(full) >= n_rows:
            how["window"] = n_rows
            n = len(full) // n_rows
            full = full[: n * n_rows].reshape(n, n_rows, *full.shape[1:])
        return array, full

    def _use(self, batch: Any, want: Any, stream: int, wrong: list[Any]) -> Any:
        """Look at a batch now, and in the middle of the work of a stream."""
        now = self.on_host(batch)
        assert now.dtype == want.dtype
        assert np.array_equal(now, want), "a batch"
        interface = batch.__cuda_array_interface__

        class Late:
            __cuda_array_interface__ = interface

        def look() -> None:
            if not np.array_equal(self.on_host(Late), want):
                wrong.append(want)

        return self.gpu.queue(stream, look)

    # ---- changes

    def given(self, values: NDArray[Any]) -> Any:
        """Values on the host, or on the device."""
        rng = self.rng
        if rng.random() < 0.4:
            return values
        shadow = Output(self.arena, rng, values.shape, values.dtype)
        shadow.view[...] = values
        lent = DeviceOutput(self.gpu, shadow)
        stream = rng.choice(self.gpu.streams)
        lent.begin(stream, is_named=True)
        self.lent.append(lent)
        return lent.view

    def write(self) -> None:
        """Write by gpushard; values on the device stay as they are."""
        with self.gpu.current(self.rng.choice(self.gpu.streams)):
            super().write()
        self._check_lent()

    def _check_lent(self) -> None:
        for lent in self.lent:
            lent.check(is_output=False)
        self.lent.clear()
        self.check_quiet()

    def _fail_to_write(self) -> None:
        """Write; if it fails for want of a device, each shard is of before or after."""
        before = self.want.copy()
        try:
            super().write()
        except (GpushardError, KeyboardInterrupt) as error:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            if not (is_interrupt or may_be_lost(error, self.gpu)):
                raise
            self.gpu.device.interrupted_in = None
            self._adopt(before)
        self.gpu.device.interrupted_in = None
        self._check_lent()

    def _adopt(self, before: NDArray[Any]) -> None:
        """Want what is stored after a write that failed."""
        numbers, values = self.written
        after = before.copy()
        after.reshape(-1)[numbers] = values
        self.settle()
        options = Options(index_cache_nbytes=0, chunk_cache_nbytes=0)
        place = self.objects.place
        self.want = gpushard.open_array(place, device="cpu", options=options)[...]
        for at in np.ndindex(*n_cells(before.shape, self.cell)):
            inside = region(at, self.cell)
            now = self.want[inside]
            is_either = [np.array_equal(now, x[inside]) for x in (before, after)]
            assert any(is_either), f"shard {at} is torn"

    # ---- what is left

    def check_quiet(self) -> None:
        """Hold what is under way to work of users."""
        device = self.gpu.device
        if not device.is_broken:
            left = device.work_under_way()
            assert left == [], left
        assert device.standin.complaints == []
        device.n_refused = 0

    def leave(self) -> None:
        """Drop all; memory and streams are back, and nothing fails that was queued."""
        del self.array
        gc.collect()
        self.gpu.check_left()


STEPS = histories.STEPS | {
    "starve": 3,
    "interrupt": 2,
    "lose": 0.3,
    "load": 3,
    "reopen": 1,
}


def explored(n: int, seed: int) -> Counter[str]:
    """See `histories.explored`."""
    return histories.explored(n, seed, DeviceHistory)
