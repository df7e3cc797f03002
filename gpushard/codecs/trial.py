"""When an array is opened, a chain that changes elements decodes a few zeros.

Names and configurations do not show which data types a codec takes, what zarr refuses
when a codec gets elements, or which package is missing. Without this trial, the first
read would report such an error as damage of the stored bytes. It only decodes: what an
array is read with need not be able to encode, and zarr's encoders take long to import.
The codecs of a shard index are tried in the same way.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpushard.codecs.base import COUNTED, FILTERS_OF_NUMCODECS
from gpushard.codecs.bytes import can_stand_for
from gpushard.codecs.elements import ElementsPart
from gpushard.errors import CorruptShardError, MetadataError, UnsupportedError
from gpushard.layout import CodecChain, CodecSpec

# Codecs that can decode zeros with every valid configuration. For other codecs, nothing
# is known about valid streams.
_TAKE_ZEROS = frozenset(
    [
        "bytes",
        "cast_value",
        "numcodecs.packbits",
        "scale_offset",
        "transpose",
        *COUNTED,
        *FILTERS_OF_NUMCODECS,
    ]
)
_PACKED = "numcodecs.packbits"
# As many bits as fill a byte, so that packed bits begin with a padding of zero.
_N_ELEMENTS = 8


def try_out(
    part: Any, chain: CodecChain, dtype: np.dtype[Any], chunk_shape: tuple[int, ...]
) -> None:
    """Fit the array part of `chain` to its elements, and let it decode zeros.

    `chunk_shape` is the shape of an inner chunk in the axes that the chain encodes.
    """
    if isinstance(part, ElementsPart):
        if not part.has_filters:
            return
    else:
        part.validate(chunk_shape)
    specs = (*chain.array_array, chain.array_bytes)
    try:
        _decode_zeros(part, specs, dtype, len(chunk_shape))
    except UnsupportedError as error:
        if error.json_path is None:
            error.json_path = _culprit(specs, error.codec).json_path
        raise
    except CorruptShardError as error:
        if all(spec.name in _TAKE_ZEROS for spec in specs):
            culprit = _culprit(specs, error.codec)
            reason = error.what if error.got is None else f"{error.what}: {error.got}"
            raise _unfit(culprit, dtype, reason) from error


def _decode_zeros(
    part: Any, specs: tuple[CodecSpec, ...], dtype: np.dtype[Any], ndim: int
) -> None:
    shape = (_N_ELEMENTS, *(1,) * (ndim - 1)) if ndim else ()
    if not ndim and any(spec.name == _PACKED for spec in specs):
        return
    if specs[-1].name in COUNTED:
        n_items = prod(shape)
        zeros = n_items.to_bytes(4, "little") + bytes(4 * n_items)
    else:
        nbytes = part.encoded_nbytes(shape)
        if nbytes is None:
            return
        zeros = bytes(nbytes)
    decoded = part.decoder(shape)(zeros)
    if not can_stand_for(decoded.dtype, dtype):
        raise CorruptShardError(
            "they decode to another data type",
            codec=_first_change(specs).name,
            got=decoded.dtype,
        )


def _first_change(specs: tuple[CodecSpec, ...]) -> CodecSpec:
    return next(spec for spec in specs if spec.name != "transpose")


def _culprit(specs: tuple[CodecSpec, ...], name: str | None) -> CodecSpec:
    named = [spec for spec in specs if spec.name == name]
    return named[0] if named else _first_change(specs)


def _unfit(spec: CodecSpec, dtype: np.dtype[Any], reason: str) -> MetadataError:
    return MetadataError(
        f"the codec does not fit the data type, {reason}",
        codec=spec.name,
        json_path=spec.json_path,
        expected=f"a codec of {dtype}",
    )
