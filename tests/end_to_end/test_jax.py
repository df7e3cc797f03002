"""Arrays of JAX on the host: made of results, as indexes, and as no outputs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import gpushard
from zarr_oracle import assert_same_bits, quiet_zarr

jax = pytest.importorskip("jax", reason="JAX is installed in the newest lane only")

VALUES = np.arange(12 * 10, dtype="f4").reshape(12, 10)


@pytest.fixture(scope="module", autouse=True)
def _devices():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, which looks for devices
        jax.devices()


def stored(values):
    objects: dict = {}
    with quiet_zarr():
        z = zarr.create_array(
            MemoryStore(objects),
            shape=values.shape,
            chunks=(3, 5),
            shards=(6, 10),
            dtype=values.dtype,
        )
        z[...] = values
    return gpushard.open_array(MemoryStore(objects))


@pytest.fixture
def a():
    return stored(VALUES)


def test_results_become_arrays_of_jax_and_are_computed_with(a):
    got = jax.numpy.from_dlpack(a[...])
    assert_same_bits(np.asarray(got), VALUES)
    assert float(jax.jit(lambda x: x.sum())(got)) == VALUES.sum(dtype="f8")


def test_arrays_of_jax_index_an_array(a):
    rows = jax.numpy.array([3, 0, 11])
    assert_same_bits(a.oindex[rows], VALUES[[3, 0, 11]])
    assert_same_bits(a[jax.numpy.array(4)], VALUES[4])


def test_arrays_of_jax_are_written(a):
    a[2] = jax.numpy.full(10, 7.0)
    assert_same_bits(a[2], np.full(10, 7.0, "f4"))


def test_arrays_of_jax_are_no_outputs_since_nobody_may_change_them(a):
    with pytest.raises(gpushard.SelectionError, match=r"out=.*(read-only|memory)"):
        a.read(out=jax.numpy.zeros((12, 10)))


def test_the_loader_gives_arrays_of_jax(a):
    with gpushard.Loader(a, batch_size=4, to="jax") as loader:
        batches = list(loader)
    assert all(isinstance(batch, jax.Array) for batch in batches)
    assert_same_bits(np.concatenate(batches), VALUES)


@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification")
def test_the_loader_names_the_array_whose_elements_jax_does_not_have(a):
    words = stored(np.full((12, 10), "a"))
    for arrays, name in (
        (words, "array"),
        ((a, words), "arrays[1]"),
        ({"x": words}, "x"),
    ):
        with pytest.raises(gpushard.UnsupportedError) as told:
            gpushard.Loader(arrays, to="jax")
        assert str(told.value).startswith(
            f"the loader's {name} cannot become arrays of jax, as to= says: expected"
            " elements of a data type that jax has, got <U1; leave out to=,"
        )


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_elements_that_jax_would_cut_are_refused_until_it_is_told_to_keep_them(dtype):
    values = np.arange(60).reshape(6, 10).astype(dtype) + 2**40
    wide = stored(values)
    cut = (
        f"elements of the loader's array: expected {dtype[:-2]}32, got {dtype}; .*_x64"
    )
    with pytest.raises(gpushard.UnsupportedError, match=cut):
        gpushard.Loader(wide, to="jax")
    assert next(iter(gpushard.Loader(wide, to="jax", dtype="f4"))).dtype == "f4"
    jax.config.update("jax_enable_x64", True)
    try:
        (batch,) = gpushard.Loader(wide, to="jax", batch_size=6)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert_same_bits(np.asarray(batch), values)
