"""What is other than usual in a history: small bounds, and clocks that do not tick."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from gpushard import source, stored
from gpushard.fetching import job
from gpushard.fused import kept_files, placer, shares
from gpushard.placing import outputs
from gpushard.stores.local import handles
from gpushard.writing import grown
from tiny_bounds import tiny_bounds

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# With these, little is shared among threads, kept, decoded in part and streamed, and
# single inner chunks are read to be written in part.
SMALL_BOUNDS: tuple[tuple[Any, str, int], ...] = (
    (job, "SMALLEST_SHARE_NBYTES", 500),
    (shares, "_SMALLEST_NBYTES", 500),
    (shares, "_SHARE_US", 1),
    (source, "_LEAST_KEPT_NBYTES", 50),
    (source, "_LEAST_KEPT_FAST_NBYTES", 50),
    (stored, "_DIVISIBLE_NBYTES", 300),
    (placer, "LARGE_NBYTES", 2000),
    (outputs, "LARGE_NBYTES", 2000),
    (grown, "_LEAST_CELLS", 1),
)


def has_clock(seed: int) -> bool:
    """Whether the file system's clock dates changes, and may not tick between two."""
    return seed % 5 == 0


def circumstances(seed: int) -> Iterator[AbstractContextManager[Any]]:
    """What is other than usual in this history."""
    rng = random.Random(f"circumstances {seed}")
    if not has_clock(seed):  # then what was read is kept at once
        for asks in (handles, kept_files):
            yield mock.patch.object(asks, "is_settled", return_value=True)
    if rng.random() < 0.5:
        yield from (mock.patch.object(*bound) for bound in SMALL_BOUNDS)
    if rng.random() < 0.1:
        yield tiny_bounds()
