"""Arrays where NumPy's are expected, and results where others' are."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import numpy_like
from zarr_oracle import assert_same_bits

VALUES = np.arange(33 * 40, dtype="f4").reshape(33, 40)


@pytest.fixture
def a(tmp_path):
    z = zarr.create_array(
        tmp_path, shape=(33, 40), chunks=(8, 10), shards=(16, 20), dtype="f4"
    )
    z[...] = VALUES
    return gpushard.open_array(tmp_path)


@pytest.fixture(params=["array", "concat"])
def either(a, request):
    return a if request.param == "array" else gpushard.concat([a])


def test_asarray_gives_all_elements_in_any_data_type(either):
    assert_same_bits(np.asarray(either), VALUES)
    assert_same_bits(np.asarray(either, dtype="i8"), VALUES.astype("i8"))
    assert_same_bits(np.array(either, copy=True), VALUES)
    assert_same_bits(np.add(either, 1), VALUES + 1)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(either, copy=False)


def test_size_length_and_text_are_those_of_an_array(either):
    assert (either.ndim, either.size, either.nbytes) == (2, 1320, 5280)
    assert len(either) == 33
    assert "shape=(33, 40) dtype=float32" in repr(either)


@pytest.mark.parametrize(
    ("slab_rows", "starts"),
    [
        (1000, [0, 16]),
        (20, [0, 16, 32]),
        (3, [*range(0, 33, 3)]),
        (0, [*range(33)]),
    ],
)
def test_iteration_gives_rows_and_reads_more_and_more_at_a_time(
    either, slab_rows, starts, monkeypatch
):
    monkeypatch.setattr(numpy_like, "_SLAB_NBYTES", slab_rows * 160)
    kind, reads = type(either), []
    read = kind.read
    monkeypatch.setattr(
        kind, "read", lambda self, key: reads.append(key) or read(self, key)
    )
    rows = iter(either)
    assert_same_bits(next(rows), VALUES[0])
    assert reads == [slice(0, max(1, min(16, slab_rows)))]
    assert_same_bits(np.stack([VALUES[0], *rows]), VALUES)
    assert [key.start for key in reads] == starts


def test_iteration_over_small_blocks_makes_few_reads(tmp_path, monkeypatch):
    z = zarr.create_array(tmp_path / "x", shape=(100, 2), chunks=(1, 2), dtype="i4")
    z[...] = np.arange(200).reshape(100, 2)
    x = gpushard.open_array(tmp_path / "x")
    read, n_rows = type(x).read, []

    def noted(self, key):
        n_rows.append(key.stop - key.start)
        return read(self, key)

    monkeypatch.setattr(type(x), "read", noted)
    monkeypatch.setattr(numpy_like, "_SLAB_NBYTES", 19 * 8)
    assert_same_bits(np.stack([*x]), z[...])
    assert n_rows == [1, 2, 4, 8, 16, 19, 19, 19, 12]


def test_iteration_over_blocks_of_several_lengths_gives_every_row(tmp_path):
    parts = []
    for n in (2, 3):
        zarr.create_array(tmp_path / f"{n}", data=np.arange(6 * n), chunks=(n,))
        parts.append(gpushard.open_array(tmp_path / f"{n}", device="cpu"))
    joined = gpushard.concat(parts)
    assert joined.block_shape is None
    assert list(joined) == [*range(12), *range(18)]


def test_iteration_along_one_axis_gives_scalars(tmp_path):
    zarr.create_array(tmp_path / "x", data=np.arange(5))
    assert list(gpushard.open_array(tmp_path / "x")) == [0, 1, 2, 3, 4]


def test_arrays_of_no_dimension_have_no_length_and_no_rows(tmp_path):
    zarr.create_array(tmp_path / "x", data=np.float32(2))
    x = gpushard.open_array(tmp_path / "x")
    with pytest.raises(TypeError, match="0-d"):
        len(x)
    with pytest.raises(TypeError, match="0-d"):
        iter(x)
    assert np.asarray(x) == 2


@pytest.mark.parametrize("kind", [int, float, complex])
def test_only_arrays_of_no_dimension_become_pythons_numbers(kind, tmp_path):
    zarr.create_array(tmp_path / "x", data=np.float32(2))
    zarr.create_array(tmp_path / "y", data=np.ones(1))
    assert kind(gpushard.open_array(tmp_path / "x")) == 2
    y = gpushard.open_array(tmp_path / "y")
    for array, name in ((y, r"/y shape=\(1,\)"), (gpushard.concat([y, y]), "Concat")):
        with pytest.raises(TypeError, match=rf"{name}.* has 1: index it first"):
            kind(array)


def test_an_array_is_true_if_it_has_rows_or_if_its_only_element_is(tmp_path):
    for n, (stored, truth) in enumerate(
        [
            (np.float32(2), True),
            (np.int8(0), False),
            (np.zeros((3, 0)), True),
            (np.zeros((0, 3)), False),
            (np.zeros(1), True),
        ]
    ):
        zarr.create_array(tmp_path / str(n), data=stored)
        assert bool(gpushard.open_array(tmp_path / str(n))) is truth


def test_arrays_on_a_device_do_not_become_numpys_by_themselves(a):
    from cuda_host.device import EmulatedDevice
    from cuda_host.launch import Kernels
    from cuda_host.standin import load_standin

    device = EmulatedDevice(Kernels(), load_standin())
    on_device = gpushard.open_array(a.source.store, device=device)
    with pytest.raises(TypeError, match="device='cpu'"):
        np.asarray(on_device)


def test_results_are_dlpack_exporters_of_the_host(a):
    result = a[:3]
    assert result.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(result), result)


class Exporter:
    """Memory that can be had by DLPack and in no other way."""

    def __init__(self, of):
        self._of = of

    def __dlpack__(self, **how):
        return self._of.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._of.__dlpack_device__()


def test_reads_write_into_what_exports_itself_by_dlpack(either):
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy before 2.1 lets nobody write to what it gets by DLPack")
    memory = np.zeros((33, 80))
    out = Exporter(memory[:, ::2])
    assert either.read(out=out) is out
    assert_same_bits(memory[:, ::2], VALUES.astype("f8"))
    assert not memory[:, 1::2].any()
    locked = VALUES.view()
    locked.flags.writeable = False
    with pytest.raises(gpushard.SelectionError, match=r"out=.*(read-only|memory)"):
        either.read(out=Exporter(locked))


def test_results_work_in_the_array_api(a):
    compat = pytest.importorskip("array_api_compat", reason="it is not installed")
    result = a[3:9]
    xp = compat.array_namespace(result)
    assert compat.device(result) == "cpu"
    mean = xp.mean(xp.astype(result, xp.float64), axis=0, keepdims=True)
    assert_same_bits(mean, VALUES[3:9].astype("f8").mean(axis=0, keepdims=True))
