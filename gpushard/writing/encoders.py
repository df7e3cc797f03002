"""Encoders of an array's codec chains, made once for all writes to it."""

from __future__ import annotations

from collections.abc import Sequence

from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.layout import INDEX_ELEMENTS
from gpushard.source import Source

_FINDING = "encoders"


def encoders_of(source: Source) -> Sequence[ChainEncoder]:
    """Encoder of an array's inner chunks, and of the indexes at each level.

    They are for this write. What they share with those of other writes takes little
    memory, but to ask zarr for it takes longer than to encode a small inner chunk.
    """
    if _FINDING not in source.findings:
        layout = source.layout
        chunks = ChainEncoder(layout.chain, layout.elements)
        indexes = (ChainEncoder(n.index_chain, INDEX_ELEMENTS) for n in layout.levels)
        source.findings[_FINDING] = (chunks, *indexes)
    return [one.anew() for one in source.findings[_FINDING]]
