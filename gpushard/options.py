"""All knobs of a read, frozen, each default with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpushard.errors import OptionError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def usable_cpu_count() -> int:
    """Count the CPUs this process may use: affinity, cut by a cgroup quota."""
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        n_cpus = os.cpu_count() or 1
    quota = _cgroup_cpu_quota()
    return max(1, n_cpus if quota is None else min(n_cpus, quota))


def _cgroup_cpu_quota() -> int | None:
    # cgroup v2, "max" or "<quota> <period>" in microseconds (kernel docs, cpu.max).
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None


_LARGEST = 2**62
_BOUNDS: dict[str, tuple[float, float]] = {
    "threads": (1, 1024),
    "memory_limit": (1, _LARGEST),
    "batch_nbytes": (1, _LARGEST),
    "small_read_chunks": (0, 1024),
    "whole_object_fraction": (0, 1),
    "whole_object_max_nbytes": (0, _LARGEST),
    "file_handles": (1, 1 << 20),
    "index_cache_nbytes": (0, _LARGEST),
    "compile_nbytes": (0, _LARGEST),
    "max_index_nbytes": (16, _LARGEST),
    "max_sharding_depth": (0, 64),
}
"""Smallest and largest value of each knob."""


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of a read.

    Attributes
    ----------
    threads
        Worker threads of the CPU path. Decoders release the GIL, so one per CPU.
    memory_limit
        Bytes of staging (encoded and decoded inner chunks in flight) a read may hold
        beside its output.
    batch_nbytes
        Encoded bytes fetched and decoded as one unit of work. Large enough that the
        request overhead vanishes, small enough that several fit in the caches and in
        `memory_limit`.
    small_read_chunks
        Reads of at most this many inner chunks take a path without columns and
        without a thread pool: eight of them cost as much as making the columns.
    whole_object_fraction
        Where each request has a price, an object is fetched whole when at least this
        part of its inner chunks is wanted and its index is not known.
    whole_object_max_nbytes
        Decoded size above which a shard is never fetched whole.
    file_handles
        Open files kept per local store. Half of the smallest usual limit of 256.
    index_cache_nbytes
        Memory for shard indexes kept between reads, per array.
    compile_nbytes
        Decoded size from which on a read takes the compiled loops (numba); to load them
        takes half a second once a process and seconds once a machine. 64 MiB is what
        they were measured with; at 16 MiB some processes read slower with them.
    max_index_nbytes
        Largest shard index accepted. tensorstore's cap is 2**30 entries; 1 GiB is
        2**26 entries and already an unreasonable shard.
    max_sharding_depth
        Deepest nesting of sharding codecs accepted.
    """

    threads: int = field(default_factory=usable_cpu_count)
    memory_limit: int = 256 * MIB
    batch_nbytes: int = 4 * MIB
    small_read_chunks: int = 8
    whole_object_fraction: float = 0.75
    whole_object_max_nbytes: int = 64 * MIB
    file_handles: int = 128
    index_cache_nbytes: int = 256 * MIB
    compile_nbytes: int = 64 * MIB
    max_index_nbytes: int = GIB
    max_sharding_depth: int = 8

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_whole = name == "whole_object_fraction" or isinstance(value, int)
            if not (is_number and is_whole and least <= value <= most):
                raise OptionError(
                    f"the option {name} is out of its bounds",
                    expected=f"a number from {least} to {most}",
                    got=repr(value),
                )

    def but(self, **changes: Any) -> Options:
        """Copy with the changes that are not None."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


DEFAULT = Options()
