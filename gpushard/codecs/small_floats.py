"""bfloat16 and 8-bit floats of ml_dtypes: their names, and how codecs get their bits.

zarr does not know these types. Unsigned integers of the same size have the same bytes,
in either byte order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import UnsupportedError
from gpushard.layout import CodecChain, Elements

# Registered names of the ml_dtypes data types whose elements are whole bytes.
SMALL_FLOAT_NAMES = frozenset(
    [
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
)


def is_small_float(dtype: np.dtype[Any]) -> bool:
    """Whether ml_dtypes defines `dtype`, so that NumPy cannot change its byte order."""
    return dtype.name in SMALL_FLOAT_NAMES


def bits_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Unsigned integers of the size of a data type."""
    return np.dtype(f"u{dtype.itemsize}")


def as_bits(elements: Elements) -> Elements:
    """The same elements as unsigned integers."""
    dtype = bits_dtype(elements.dtype)
    fill_value = elements.fill_value.view(dtype)
    return replace(
        elements,
        dtype=dtype,
        data_type_json=dtype.name,
        fill_value_json=int(fill_value),
        fill_value=fill_value,
    )


def refuse_computing(chain: CodecChain, dtype: np.dtype[Any]) -> None:
    """Refuse codecs that compute with the values, where only their bits are known.

    Raises
    ------
    UnsupportedError
        Elements of this type are not written through such a codec.
    """
    if not is_small_float(dtype):
        return
    for spec in (*chain.array_array, chain.array_bytes):
        if spec.name not in ("transpose", "bytes"):
            raise UnsupportedError(
                f"elements of {dtype} are not written through this codec",
                codec=spec.name,
                json_path=spec.json_path,
                expected="transpose, bytes, and then codecs of bytes",
                hint="leave the codec out, or store float32",
            )


def are_held(values: NDArray[Any], cast: NDArray[Any]) -> bool:
    """Whether a cast to such a type only rounded: NumPy does not tell of an overflow.

    What a type cannot hold becomes infinity in some of them, and NaN in others.
    """
    is_lost = ~np.isfinite(cast)
    if not is_lost.any():
        return True
    given, found = values[is_lost], cast[is_lost]
    return bool(np.all((np.isnan(given) == np.isnan(found)) & ~np.isfinite(given)))
