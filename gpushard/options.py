"""All options of a read or a write, frozen, each default with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

from gpushard.errors import OptionError
from gpushard.machine import usable_cpu_count, usable_memory_nbytes
from gpushard.write_options import WriteOptions

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Default memory limit of a read's batches.
DEFAULT_MEMORY_LIMIT = 256 * MIB
# A lower memory limit cuts batches and requests, but the read as a whole may hold this
# much, because columns, indexes and the smallest pieces of a read need it.
LEAST_MEMORY_NBYTES = 64 * MIB
# An inner chunk that alone needs more than the default may take this part of the memory
# that the process may use, so that eight reads can do so at a time.
_ALONE_SHARE = 8

# Memory of an array for decoded inner chunks, where nobody has set it: one for each of
# the inner chunks of 1 MiB that a line through a large array touches.
_SHARED_CACHE_NBYTES = 16 * MIB

# Metadata documents above this size are refused unread. Consolidated metadata of 35,000
# arrays have this size.
MAX_DOCUMENT_NBYTES = 64 * MIB
# Memory that a parsed metadata document may take. Documents of real hierarchies take 4
# to 7 bytes per byte, 10,000 arrays some 70 MiB; empty lists take 27 bytes per byte.
MAX_PARSED_NBYTES = 256 * MIB

_LARGEST = 2**62
_LEFT_OPEN = frozenset(("memory_limit", "chunk_cache_nbytes", "device_patience_s"))
_REAL = frozenset(("whole_object_fraction", "patience_s", "device_patience_s"))
_BOUNDS: dict[str, tuple[float, float]] = {
    "threads": (1, 1024),
    "memory_limit": (1, _LARGEST),
    "batch_nbytes": (1, _LARGEST),
    "small_read_chunks": (0, 1024),
    "whole_object_fraction": (0, 1),
    "whole_object_max_nbytes": (0, _LARGEST),
    "file_handles": (1, 1 << 20),
    "index_cache_nbytes": (0, _LARGEST),
    "chunk_cache_nbytes": (0, _LARGEST),
    "compile_nbytes": (0, _LARGEST),
    "pinned_slots": (1, 1024),
    "max_chunk_nbytes": (1, _LARGEST),
    "max_index_nbytes": (16, _LARGEST),
    "max_sharding_depth": (0, 64),
    "patience_s": (0.1, 86_400),
    "min_nbytes_per_s": (1, _LARGEST),
    "device_patience_s": (0.1, 86_400),
}
"""Smallest and largest value of each option."""
LIMITS = ("max_chunk_nbytes", "max_index_nbytes", "max_sharding_depth", "memory_limit")
"""Options that bound what an array may need; a `LimitError` names the one to raise."""
_FLAGS = ("relay", "gds", "kvikio_remote")
PLACEMENTS = ("cost", "device", "host")
"""Values of `Options.placement`."""


def limit_in_words(hint: str | None, words: str) -> str | None:
    """A hint with `words` in place of ``raise options.NAME``.

    `words` say how a limit is raised at this entry point, with ``{name}`` for its name.
    """
    for name in LIMITS:
        hint = hint and hint.replace(f"raise options.{name}", words.format(name=name))
    return hint


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a read, and in `write` those of a write.

    Attributes
    ----------
    threads
        Worker threads of the CPU path. Decoders release the GIL, so one per CPU.
    memory_limit
        Most bytes that a read may hold beside its output: shard indexes, columns, and
        encoded and decoded inner chunks. An inner chunk that does not fit is a
        `LimitError`. A limit below 64 MiB cuts batches as it says, but the read as a
        whole may hold 64 MiB. None means 256 MiB, or as much as lets every thread
        decode an inner chunk. That, and a single inner chunk that needs more, may take
        an eighth of the memory that the process may use. A read that a device decodes
        may hold an eighth of what is free there, at most 4 GiB: it takes thousands of
        streams to keep a GPU busy.
    batch_nbytes
        Encoded bytes fetched and decoded as one unit of work. Large enough that the
        request overhead vanishes, small enough that several fit in the caches and in
        `memory_limit`. Over a network up to eight times as many: it is waited for once
        in each unit.
    small_read_chunks
        Reads of at most this many inner chunks go without columns and without a thread
        pool: making columns costs as much as eight inner chunks. Several inner chunks
        that together exceed 1 MiB, or `memory_limit`, do not go that way. Over a
        network, as many go that way as the store has requests under way. Once the
        compiled loops are loaded, two to a thousand inner chunks in local files have a
        short way of their own, and ``a[key]`` has one for a part of a single inner
        chunk. 0 switches the short ways off.
    whole_object_fraction
        In a store whose requests are expensive, a shard whose index is not known is
        fetched whole if at least this part of its inner chunks is wanted.
    whole_object_max_nbytes
        Decoded size above which a shard is never fetched whole: several requests for
        parts of it, side by side, take less time than a single one, even though they
        wait for the index first.
    file_handles
        Open files kept per local store. Half of the smallest usual limit of 256. All
        are closed when a process has three quarters of the files open that it may have.
    index_cache_nbytes
        Memory for shard indexes kept between reads, per array.
    chunk_cache_nbytes
        Memory for decoded inner chunks kept between reads into host memory, per array.
        It comes on top of `memory_limit`, so 0 keeps none. None, the default, keeps up
        to 16 MiB of inner chunks of at least 32 KiB (LZ4: 256) that reads come back to
        or take parts of, and up to 64 MiB for all such arrays of a process, unless
        `memory_limit` is set. A number pays where reads share more: docs/arrays.md says
        where.
    compile_nbytes
        Decoded bytes that a process reads, in all its reads together, before loops are
        compiled for reads (numba), once per machine, where the package came without
        them. A process that has read so much is likely to read as much again. On Linux
        (x86-64) another process compiles them, in 10 to 20 seconds of an idle core, and
        reads go on without them meanwhile. With 0, and elsewhere, the read waits. Loops
        that came with the package, or that an earlier process has compiled, are loaded
        in milliseconds, from a 64th of that size on; for that, a small read counts as
        16 KiB. An inner chunk counts as 512 bytes at least. Once loaded, all reads use
        them.
    placement
        Where a read into a device's memory decodes what the device can decode: "cost"
        estimates what is faster, batch by batch, and has the host read what it reads
        before a device would begin; "device" and "host" fix the choice.
    pinned_slots
        Batches that a read to a device fetches ahead: pieces of pinned memory, or of
        device memory for what is relayed or read by kvikio. Two that are being copied
        or decoded, and two that are being filled.
    relay
        Whether threads of the compiled loops read local files for a device and queue
        the copies by its driver, in small pieces. Without them, and until the loops are
        loaded, a batch is read into pinned memory and then copied.
    gds
        Whether kvikio reads local files straight into device memory where GPUDirect
        Storage is active.
    kvikio_remote
        Whether kvikio reads ranges of HTTP and S3 objects; off until it was measured.
    max_chunk_nbytes
        Largest inner chunk that is decoded. It also bounds a shard with codecs around
        it, the text of an inner chunk of strings, and the part of an uncompressed inner
        chunk that has to be fetched at once. Blosc and the codecs of Zarr v2 take 2 GiB
        at most. `memory_limit` mostly has room for less.
    max_index_nbytes
        Largest shard index that is accepted. 32 MiB are two million inner chunks per
        shard. An index takes twice its size of `memory_limit`, and may take half of it.
    max_sharding_depth
        Deepest nesting of sharding codecs that is accepted.
    patience_s
        Seconds until gpushard gives up a server that is busy, or that accepts and never
        answers: time for two silent attempts, or for a busy server's usual Retry-After.
    min_nbytes_per_s
        Slowest answer that is waited for: one of n bytes is given up ``patience_s + n /
        min_nbytes_per_s`` seconds after its request. 32 answers at a time come that
        slowly over a line of 16 Mbit/s.
    device_patience_s
        Seconds until gpushard gives up a GPU that does not end a batch, which takes
        milliseconds (docs/damaged.md says why it may not). What you had queued there
        before does not count. None waits without a limit.
    write
        How shards are written.

    Examples
    --------
    >>> options = gpushard.Options(threads=2, memory_limit=64 << 20)
    >>> a = gpushard.open_array("demo.zarr/u", options=options)
    >>> options.but(threads=8).memory_limit
    67108864
    """

    threads: int = field(default_factory=usable_cpu_count)
    memory_limit: int | None = None
    batch_nbytes: int = 4 * MIB
    small_read_chunks: int = 8
    whole_object_fraction: float = 0.75
    whole_object_max_nbytes: int = 8 * MIB
    file_handles: int = 128
    index_cache_nbytes: int = 256 * MIB
    chunk_cache_nbytes: int | None = None
    compile_nbytes: int = 64 * MIB
    placement: str = "cost"
    pinned_slots: int = 4
    relay: bool = True
    gds: bool = True
    kvikio_remote: bool = False
    max_chunk_nbytes: int = 2 * GIB
    max_index_nbytes: int = 32 * MIB
    max_sharding_depth: int = 8
    patience_s: float = 15.0
    min_nbytes_per_s: int = 64 * KIB
    device_patience_s: float | None = 60.0
    write: WriteOptions = field(default_factory=WriteOptions)

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        """Refuse impossible values (`OptionError`), and make those of NumPy plain."""
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if name in _LEFT_OPEN and value is None:
                continue
            if isinstance(value, Integral) and not isinstance(value, int):
                value = int(value)  # of NumPy
                object.__setattr__(self, name, value)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_whole = name in _REAL or isinstance(value, int)
            if not (is_number and is_whole and least <= value <= most):
                kind = "number" if name in _REAL else "whole number"
                raise OptionError(
                    f"the option {name} cannot have this value",
                    expected=f"a {kind} from {least} to {most}",
                    got=repr(value),
                )
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                # It loads NumPy, which --help must not.
                from gpushard.arguments import flag

                object.__setattr__(self, name, flag(value, name))
        write: Any = self.write
        if not isinstance(write, WriteOptions):
            raise OptionError(
                "the option write cannot have this value",
                expected="a gpushard.WriteOptions",
                got=repr(write),
            )
        if self.placement not in PLACEMENTS:
            raise OptionError(
                "the option placement has no such value",
                expected=f"one of {', '.join(PLACEMENTS)}",
                got=repr(self.placement),
            )

    def but(self, **changes: Any) -> Options:
        """Copy with the changes that are not None."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})

    def resolved(self) -> ReadOptions:
        """The same options, with numbers for those that are left open."""
        if isinstance(self, ReadOptions):
            return self
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        limit = given.pop("memory_limit")
        if given["chunk_cache_nbytes"] is None:
            given |= _cache_beside(limit)
        if limit is not None:
            return ReadOptions(**given, **_held_to(limit))
        share = (usable_memory_nbytes() or 0) // _ALONE_SHARE
        return ReadOptions(
            **given,
            memory_limit=DEFAULT_MEMORY_LIMIT,
            bound_nbytes=DEFAULT_MEMORY_LIMIT,
            alone_nbytes=max(DEFAULT_MEMORY_LIMIT, share),
            is_left_open=True,
        )


def _cache_beside(memory_limit: int | None) -> dict[str, Any]:
    """The fields of `ReadOptions` for a cache that is left open."""
    is_shared = memory_limit is None
    nbytes = _SHARED_CACHE_NBYTES if is_shared else 0
    return {"chunk_cache_nbytes": nbytes, "shares_chunk_cache": is_shared}


def _held_to(memory_limit: int) -> dict[str, Any]:
    """The fields of `ReadOptions` for a memory limit that is set."""
    bound = max(memory_limit, LEAST_MEMORY_NBYTES)
    return {
        "memory_limit": memory_limit,
        "bound_nbytes": bound,
        "alone_nbytes": bound,
        "is_left_open": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(Options):
    """Options of a read, with numbers for those that were left open.

    Attributes
    ----------
    memory_limit
        Memory that batches may hold.
    bound_nbytes
        Memory that a read may hold in total, besides its output.
    alone_nbytes
        The same for a single inner chunk that needs more; nothing else is then held
        beside it.
    chunk_cache_nbytes
        Memory for decoded inner chunks that are kept.
    shares_chunk_cache
        Whether that was left open, so that other arrays share the memory.
    is_left_open
        Whether no memory limit is set.
    held_nbytes
        Memory that is already held, of these limits.
    """

    memory_limit: int = DEFAULT_MEMORY_LIMIT
    bound_nbytes: int
    alone_nbytes: int
    is_left_open: bool
    chunk_cache_nbytes: int = 0
    shares_chunk_cache: bool = False
    held_nbytes: int = 0

    def __post_init__(self) -> None:
        """Check nothing: all that a caller gave was checked (here: by `but`)."""

    def but(self, **changes: Any) -> ReadOptions:
        """Copy with the changes that are not None; a memory limit bounds the whole."""
        given = {k: v for k, v in changes.items() if v is not None}
        limit = given.get("memory_limit")
        if "chunk_cache_nbytes" in given:
            given["shares_chunk_cache"] = False
        elif self.shares_chunk_cache:
            given |= _cache_beside(limit)
        changed = replace(self, **given)
        changed._check()  # noqa: SLF001 - of its own class
        return changed if limit is None else replace(changed, **_held_to(limit))

    def widened_to(self, nbytes: int) -> ReadOptions:
        """The same with a limit of `nbytes`, if it is left open and that is more.

        The limit is then at most what a single inner chunk may take.
        """
        bound = min(nbytes, self.alone_nbytes)
        if not self.is_left_open or bound <= self.bound_nbytes:
            return self
        return replace(self, memory_limit=bound, bound_nbytes=bound)

    def beside(self, nbytes: int, memory_limit: int) -> ReadOptions:
        """What remains while `nbytes` are held: of the total, and of the limit."""
        bound = max(1, self.bound_nbytes - nbytes)
        return replace(
            self,
            memory_limit=max(1, min(memory_limit, bound)),
            bound_nbytes=bound,
            alone_nbytes=max(1, self.alone_nbytes - nbytes),
            is_left_open=False,
            held_nbytes=self.held_nbytes + nbytes,
        )


DEFAULT = Options()
