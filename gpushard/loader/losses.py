"""Failed reads of an epoch -> shards that are lost, and whether a store is dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import (
    CorruptShardError,
    GpushardError,
    ObjectChangedError,
    StoreError,
    WindowMovedError,
)
from gpushard.loader.blame import Place, shard_places, touched
from gpushard.loader.fields import Field
from gpushard.loader.windows import Origins
from gpushard.selecting.selection import Ints

# A read that takes longer to fail is too slow to be tried for each inner chunk.
_SLOW_S = 1.0
# A shard is lost once the store failed for so many of its samples in a row, each tried
# alone and several times. A store that fails every second request does so once in 4000
# times. If it is slow to fail, one sample has to do.
_N_ALONE = 3
# A shard is lost once its index was found damaged so often: a proxy may have garbled
# one answer.
_N_DAMAGED = 2
# A store is dead once it failed at so many shards (samples, where it names no shard),
# for so many seconds of reading, with nothing read in between. A few shards that cannot
# be read are either found out faster, or beside others that can be read.
_DEAD_PLACES, _DEAD_S = 3, 10.0
# Shards that are known to have failed; of further ones, each load finds out anew.
_MOST_FAILED = 256

Shard = tuple[str | None, str | None, str | None]
"""Store, array and key of a shard, as errors name them."""
Tried = Literal["once", "repeatedly", "alone"]
"""How samples were tried: together, once or repeatedly; or alone, repeatedly."""


@dataclass(slots=True)
class _Failed:
    """A shard that failed: where it lies, and how often since it was last read."""

    places: list[Place]
    n_alone: int = 0
    n_damaged: int = 0
    is_lost: bool = False


@dataclass
class Losses:
    """What failed reads of an epoch have told.

    A thread that plans loads may ask which samples are lost while another one reads.

    Attributes
    ----------
    fields, origins
        The arrays that are read together, and where samples begin.
    suspected
        Shards of a load that were looked into.
    """

    fields: Sequence[Field]
    origins: Origins
    suspected: set[Shard] = field(default_factory=set[Shard])
    _failed: dict[Shard, _Failed] = field(default_factory=dict[Shard, _Failed])
    _lost: list[Place] = field(default_factory=list[Place])
    # What the store failed at since something was read, and for how long.
    _failing: set[object] = field(default_factory=set[object])
    _failing_s: float = 0.0
    _has_read: bool = False
    _dead: StoreError | None = None

    @property
    def n_failing(self) -> int:
        """Number of shards that the store failed at since something was read."""
        return len(self._failing)

    def of(self, samples: Ints) -> NDArray[np.bool_]:
        """Which samples need a lost shard: bool, shape (n_samples,)."""
        return self._touched(self._lost, samples)

    def about(self, error: GpushardError, samples: Ints) -> Ints:
        """Samples that need the shard that an error names: their numbers, int64."""
        places = shard_places(error, self.fields)
        return np.flatnonzero(self._touched(places, samples))

    def _touched(self, places: Sequence[Place], samples: Ints) -> NDArray[np.bool_]:
        if not places:
            return np.zeros(len(samples), np.bool_)
        return touched(places, self.origins.of(samples))

    def note_read(self, samples: Ints) -> None:
        """Note that samples were read."""
        if not len(samples):
            return
        self._has_read = True
        self._failing.clear()
        self._failing_s = 0.0
        for shard, failed in [*self._failed.items()]:
            if not failed.is_lost and self._touched(failed.places, samples).any():
                del self._failed[shard]

    def note_failed(
        self, error: GpushardError, samples: Ints, seconds: float, tried: Tried
    ) -> None:
        """Note a read of samples that failed after so many seconds.

        What is tried "alone" is one sample, or rows of one inner chunk.
        """
        shard = shard_of(error)
        of_store = is_of_store(error)
        # Of a store that fails now and then, a group that is tried once often fails.
        if of_store and (tried != "once" or n_alone(seconds) == 1):
            place = (*samples[:1], len(samples)) if shard[2] is None else shard
            self._note_store(error, place, seconds)
        failed = self._failed.get(shard)
        if failed is None and len(self._failed) < _MOST_FAILED:
            places = shard_places(error, self.fields)
            if places:
                failed = self._failed[shard] = _Failed(places)
        if failed is None or failed.is_lost:
            return
        if of_store and tried == "alone":
            failed.n_alone += 1
            failed.is_lost = failed.n_alone >= n_alone(seconds)
        elif is_of_shard(error):
            failed.n_damaged += 1
            failed.is_lost = failed.n_damaged >= _N_DAMAGED
        if failed.is_lost:
            self._lost += failed.places

    def _note_store(self, error: GpushardError, place: object, seconds: float) -> None:
        self._failing.add(place)
        self._failing_s += seconds
        why = f": {error.hint}" if error.hint else ""
        # Made anew: the frames of `error` hold what was read.
        self._dead = StoreError(
            f"a loader can read no sample any more: {error.what}",
            store_url=error.store_url,
            array_path=error.array_path,
            shard_key=error.shard_key,
            expected=error.expected,
            got=error.got,
            hint="on_error='skip' leaves out samples, and no store that fails for all"
            f" of them{why}",
        )

    def refuse_dead_store(self, *, is_end: bool = False) -> None:
        """Raise if a store is dead, or if nothing was read by the end of an epoch.

        Raises
        ------
        StoreError
            The store fails, whichever samples are read.
        """
        is_long = self._failing_s >= _DEAD_S and self.n_failing >= _DEAD_PLACES
        if self._dead and (is_long or (is_end and not self._has_read)):
            try:
                raise self._dead
            finally:
                self._dead = None  # its frames hold what was read


def quick_until() -> float:
    """Time until which a read that begins now may fail and be repeated at once."""
    return monotonic() + _SLOW_S


def n_alone(seconds: float) -> int:
    """Number of samples to try alone of a shard that took so long to fail."""
    return 1 if seconds > _SLOW_S else _N_ALONE


def shard_of(error: GpushardError) -> Shard:
    """The shard that an error names."""
    return error.store_url, error.array_path, error.shard_key


def is_of_store(error: GpushardError) -> bool:
    """Whether an error says that a store fails, and not that arrays have changed."""
    has_changed = isinstance(error, ObjectChangedError | WindowMovedError)
    return isinstance(error, StoreError) and not has_changed


def is_of_shard(error: GpushardError) -> bool:
    """Whether an error says that a whole shard is damaged, as by its index."""
    is_whole = error.inner_chunk is None and error.shard_key is not None
    return isinstance(error, CorruptShardError) and is_whole
