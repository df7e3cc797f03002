"""`transpose`: the axes of an array in another order; no bytes are moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpushard.codecs.base import ArrayCodec
from gpushard.layout import CodecSpec


@dataclass(frozen=True, slots=True)
class TransposeCodec(ArrayCodec):
    """Encoded axis k is decoded axis ``order[k]``."""

    keeps_elements: ClassVar[bool] = True
    order: tuple[int, ...]
    inverse: tuple[int, ...]

    def encoded_spec(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape in encoded axes, and the same data type."""
        return tuple(shape[axis] for axis in self.order), dtype

    def decode(
        self,
        encoded: NDArray[Any],
        shape: tuple[int, ...],  # noqa: ARG002 - the signature of `ArrayCodec`
        dtype: np.dtype[Any],  # noqa: ARG002 - the signature of `ArrayCodec`
    ) -> NDArray[Any]:
        """View of `encoded` with the axes back in place."""
        return encoded.transpose(self.inverse)


def from_spec(spec: CodecSpec) -> TransposeCodec:
    """Decoder for one entry of `codecs`, whose order is a permutation."""
    axes = tuple(spec.configuration["order"])
    inverse = tuple(axes.index(axis) for axis in range(len(axes)))
    return TransposeCodec(spec.name, "numpy", axes, inverse)
