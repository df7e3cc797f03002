"""`transpose`: the axes of an array in another order; no bytes are moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import MetadataError
from gpushard.layout import CodecSpec


@dataclass(frozen=True, slots=True)
class TransposeCodec:
    """Encoded axis k is decoded axis ``order[k]``."""

    name: str
    library: str
    order: tuple[int, ...]
    inverse: tuple[int, ...]

    def encoded_spec(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape in encoded axes, and the same data type."""
        return tuple(shape[axis] for axis in self.order), dtype

    def working_nbytes(
        self,
        n_elements: int,  # noqa: ARG002 - the signature of `ArrayCodec`
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> int:
        """Memory that decoding takes: none, no element is moved."""
        return 0

    def decode(
        self,
        encoded: NDArray[Any],
        shape: tuple[int, ...],  # noqa: ARG002 - the signature of `ArrayCodec`
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> NDArray[Any]:
        """View of `encoded` with the axes back in place."""
        return encoded.transpose(self.inverse)


def from_spec(spec: CodecSpec) -> TransposeCodec:
    """Decoder for one entry of `codecs`.

    Raises
    ------
    MetadataError
        ``order`` is not a permutation.
    """
    order = spec.configuration.get("order")
    if not _is_permutation(order):
        raise MetadataError(
            "the order of a transpose is not a permutation of its axes",
            json_path=f"{spec.json_path}.configuration.order",
            expected="each axis once",
            got=repr(order),
        )
    axes = tuple(order)
    inverse = tuple(axes.index(axis) for axis in range(len(axes)))
    return TransposeCodec(spec.name, "numpy", axes, inverse)


def _is_permutation(order: object) -> TypeGuard[Sequence[int]]:
    # `type` and not `isinstance`: JSON's true and false are integers to Python.
    return (
        isinstance(order, (list, tuple))
        and all(type(axis) is int for axis in order)
        and sorted(order) == list(range(len(order)))
    )
