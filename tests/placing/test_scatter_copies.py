"""Listed elements are copied a little at a time on the way to where they land."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from gpushard.options import MIB
from gpushard.placing import scatter
from gpushard.selecting import expressions

PLAIN = gpushard.Options(compile_nbytes=2**62, threads=1)
# Bytes of an inner chunk, twice, and what NumPy may copy; each result is larger.
MOST = 2 * MIB + 2 * MIB


def array_of(values: np.ndarray) -> gpushard.Array:
    store = MemoryStore()
    z = zarr.create_array(store, shape=values.shape, chunks=values.shape, dtype="i4")
    z[...] = values
    return gpushard.open_array(store, device="cpu", options=PLAIN)


def held(a: gpushard.Array, wanted: Any, values: np.ndarray) -> int:
    """Bytes that a read held beside its output, which is `values`."""
    out = np.empty_like(values)
    a.read(wanted, out=out)
    assert np.array_equal(out, values)
    tracemalloc.start()
    try:
        a.read(wanted, out=out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def wide():
    """Two rows of 1 MiB."""
    values = np.arange(2 * MIB // 4, dtype="i4").reshape(2, -1)
    return array_of(values), values


@pytest.mark.parametrize("n", [8, 70])
def test_a_row_that_is_listed_many_times_is_not_copied_as_often(wide, n):
    a, values = wide
    rows = np.arange(n) % 2
    wanted = expressions.orthogonal((rows,), a.shape)
    assert held(a, wanted, values[rows]) < MOST < n * MIB


def test_listed_rows_and_columns_are_cut_along_both(wide):
    a, values = wide
    n = 70
    rows, columns = np.arange(n) % 2, np.arange(values.shape[1])[::-1].copy()
    wanted = expressions.orthogonal((rows, columns), a.shape)
    # What is listed is laid out, too: 96 bytes an element.
    most = MOST + 96 * len(columns)
    assert held(a, wanted, values[rows][:, columns]) < most < n * MIB


@pytest.mark.parametrize("most", [1, 2, 5, 7, 20, 60])
def test_crossed_lists_are_cut_until_a_part_has_few_elements(most):
    mesh = np.ix_(np.arange(3), np.arange(5), np.arange(4))
    n_seen = np.zeros((3, 5, 4), int)
    for here, there in scatter._pieces(mesh, mesh, most):
        assert n_seen[here].size <= most
        assert all(map(np.array_equal, here, there))
        n_seen[here] += 1
    assert np.all(n_seen == 1)


def of_items(dtype: Any) -> tuple[gpushard.Array, np.ndarray]:
    """256 elements of some KiB."""
    values = np.array([f"{k} " * 500 for k in range(256)]).astype(dtype)
    store = MemoryStore()
    kind = {"dtype": values.dtype, "zarr_format": 2 if dtype == "S4096" else 3}
    z = zarr.create_array(store, shape=(256,), chunks=(256,), **kind)
    z[...] = values
    return gpushard.open_array(store, device="cpu", options=PLAIN), values


@pytest.mark.parametrize("kind", ["points", "index"])
def test_large_elements_are_copied_by_their_bytes(kind):
    a, values = of_items("S4096")
    which = np.arange(3000) % 256
    parse = expressions.points if kind == "points" else expressions.orthogonal
    wanted = parse((which,), a.shape)
    assert held(a, wanted, values[which]) < MOST + 3000 * 96 < 3000 * 4096


# zarr 3.1.0 does not know its own string codec.
@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
@pytest.mark.parametrize("kind", ["points", "index"])
def test_strings_are_copied_by_the_dozen(kind, monkeypatch):
    a, values = of_items(np.dtypes.StringDType())
    which = np.arange(200) % 150
    parse = expressions.points if kind == "points" else expressions.orthogonal
    copied: list[int] = []
    real = np.ndarray.__getitem__

    class Noted(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            copied.append(np.asarray(real(self, key)).size)
            return real(self, key)

    decode = type(a.source.pipeline).decode
    monkeypatch.setattr(
        type(a.source.pipeline),
        "decode",
        lambda self, *given: decode(self, *given).view(Noted),
    )
    assert np.array_equal(a.read(parse((which,), a.shape)), values[which])
    assert sum(copied) == 200
    assert max(copied) <= 64
