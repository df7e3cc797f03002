"""Limits of the scatter kernels."""

from __future__ import annotations

from gpushard.errors import UnsupportedError

LIMIT = 1 << 31
"""Sizes and counts are 32-bit in the kernels, with room for one step past the end."""

MAX_AXES = 32
"""Most axes of an array: `MAX_COLUMNS` of ``kernels/scatter_box.cuh``."""


def check_limit(what: str, number: int, limit: int) -> None:
    """Refuse `number` unless it is below `limit`.

    Raises
    ------
    UnsupportedError
        `number` is `limit` or more.
    """
    if number >= limit:
        raise UnsupportedError(
            f"the scatter kernels do not take so many {what}",
            expected=f"fewer than {limit}",
            got=number,
            hint="read a smaller selection at a time, or read on the CPU",
        )
