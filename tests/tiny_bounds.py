"""Bounds on listed elements, so small that a few elements are cut in every way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from gpushard.reading import rounds, surrounded
from gpushard.selecting import index_arrays, listing, portions


@contextmanager
def tiny_bounds(
    block: int = 3, least: int = 4, counts_log2: int = 1, few_more: int = -1
) -> Iterator[None]:
    """Let two elements be many, a block have `block`, a portion `least` of them.

    `few_more` looks at each block, besides one, are too few for elements to be sorted
    out.
    """
    with ExitStack() as stack:
        for module, name, value in (
            (index_arrays, "KEPT_ELEMENTS", 1),
            (listing, "BLOCK_ELEMENTS", block),
            (portions, "_COUNTS_LOG2", counts_log2),
            (portions, "_FEW_MORE_LOOKS", few_more),
            (rounds, "_LEAST_ELEMENTS", least),
            (rounds, "_ELEMENT_NBYTES", 1 << 40),
            (rounds, "_POINT_NBYTES", 1 << 40),
            # Else the points of a small array would not be read in rounds.
            (surrounded, "_MANY_PER_ELEMENT", 0),
            (surrounded, "_FEW_PER_ELEMENT", 0),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
