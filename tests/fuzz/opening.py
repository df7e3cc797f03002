"""What holds for whatever documents a store has: they open and read, or are refused."""

from __future__ import annotations

import numpy as np

import gpushard
from fuzz.refusals import assert_is_told
from gpushard import GpushardError
from gpushard.cli.description import _array_facts
from gpushard.options import DEFAULT
from gpushard.rolling.reader import RollingReader
from gpushard.stores.base import Store


def opens_array(store: Store, path: str = "") -> bool:
    """Whether there is an array; it describes itself and reads its two ends then."""
    try:
        a = gpushard.open_array(store, path)
    except GpushardError as error:
        assert_is_told(error)
        return False
    assert a.ndim == len(a.shape)
    assert repr(a)
    assert a.fill_value is not None or a.dtype.kind == "O"
    assert _array_facts(a.source.layout, store, DEFAULT)["n_shards"] >= 0
    if a.size:
        _reads(a)
    return True


def opens_group(store: Store, path: str = "") -> bool:
    """Whether there is a group; it describes itself and its children then."""
    try:
        group = gpushard.open_group(store, path)
        for name in group:
            try:
                assert repr(group[name])
            except GpushardError as error:
                assert_is_told(error)
    except GpushardError as error:
        assert_is_told(error)
        return False
    return True


def opens_rolling(store: Store, path: str = "") -> bool:
    """Whether there is a rolling array; its domain is as long as its shape then."""
    try:
        a = RollingReader(store, path)
    except GpushardError as error:
        assert_is_told(error)
        return False
    assert repr(a)
    assert a.shape == tuple(r.stop - r.start for r in a.domain)
    if 0 not in a.shape:
        _reads(a)
    return True


def _reads(a: gpushard.Array | RollingReader) -> None:
    for key in ((0,) * len(a.shape), tuple(slice(n - 1, n) for n in a.shape)):
        try:
            got = a[key]
        except GpushardError as error:
            assert_is_told(error)
        else:
            assert np.size(got) == 1
