"""Which of the compiled short ways a source's reads may take."""

from __future__ import annotations

from typing import NamedTuple

from gpushard.fused.chain import fused_chain
from gpushard.fused.choice import are_loaded, loops_for
from gpushard.fused.short.one_call import one_call
from gpushard.fused.short.sharded import ShortShardedReader
from gpushard.fused.short.single import SingleReader
from gpushard.fused.short.unsharded import ShortUnshardedReader, short_unsharded_reader
from gpushard.source import Source

_FINDING = "compiled short ways"


class ShortWays(NamedTuple):
    """Readers of small selections of one source, in compiled loops.

    Attributes
    ----------
    single
        Reads a part of one inner chunk, of a shard or with a file of its own; None if
        large inner chunks or a low memory limit rule that out.
    short
        Reads up to a thousand inner chunks; None if the loops cannot read the source.
    """

    single: SingleReader | None = None
    short: ShortShardedReader | ShortUnshardedReader | None = None


_NO_WAYS = ShortWays()


def short_ways(source: Source) -> ShortWays:
    """The short ways of a source, found at its first read after the loops are loaded.

    Each read asks whether they are, until they are: any read of the process may have
    them loaded.
    """
    if _FINDING in source.findings:
        return source.findings[_FINDING]
    ways = _find_ways(source) if are_loaded() else None
    if ways is None:
        return _NO_WAYS
    source.findings[_FINDING] = ways
    return ways


def _find_ways(source: Source) -> ShortWays | None:
    """The short ways of a source; None if other reads must come first."""
    chain = fused_chain(source)
    if chain is None or not chain.has_short_ways:
        return _NO_WAYS
    if source.has_large_indexes or not source.options.small_read_chunks:
        return _NO_WAYS
    loops = loops_for(chain, source.options)
    if loops is None:
        return None
    call = one_call(source, chain, loops)
    store, files, short = chain.plannable_store, chain.object_files, None
    if store is not None:
        short = ShortShardedReader(source, store, chain, loops, call)
    elif files is not None:
        store, short = files.store, short_unsharded_reader(source, chain, loops)
    if store is None or short is None:
        return _NO_WAYS
    if call is None:
        return ShortWays(None, short)
    return ShortWays(SingleReader(source, store, chain, call), short)
