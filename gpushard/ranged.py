"""A block of inner chunks whose byte ranges are known, cut into requests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.blocks import ShardBlock
from gpushard.coalesce import Requests
from gpushard.selection import Ints


class Located(NamedTuple):
    """Byte ranges of a block's inner chunks within their stored objects.

    Attributes
    ----------
    start, stop
        int64, shape (n_chunks,). Half-open; of no meaning where `missing`.
    missing
        bool, shape (n_chunks,). Not stored: the fill value is wanted.
    versions
        Version of each stored object that its index was read from; None where there is
        no object, no index in it, or the store tells no versions.
    """

    start: Ints
    stop: Ints
    missing: NDArray[np.bool_]
    versions: Sequence[Hashable | None]


@dataclass(frozen=True, slots=True)
class RangedBlock:
    """A block whose byte ranges are known and cut into requests.

    Attributes
    ----------
    block
        The inner chunks.
    located
        Byte range that each of them fills.
    spans
        int64, shape (2, n_chunks). Byte range that is fetched of each: all of it, or
        of plain elements what holds the wanted ones.
    requests
        What is fetched; its rows are columns of `block`.
    """

    block: ShardBlock
    located: Located
    spans: Ints
    requests: Requests

    def rows_of(self, r: int) -> Ints:
        """Inner chunks that request `r` holds, ascending by byte range."""
        return self.requests.order[
            self.requests.bounds[r] : self.requests.bounds[r + 1]
        ]
