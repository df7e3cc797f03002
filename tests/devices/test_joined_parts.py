"""Many selections of one array on a device: those laid out alike share a launch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from array_strategies import codec
from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fuzz.shard_cases import (
    BIG,
    CRC,
    LITTLE,
    ZSTD,
    OneObject,
    blosc,
    document,
    sharding,
)
from gpushard import open_array
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.output import DeviceOutput
from gpushard.devices.scattering import joining
from gpushard.devices.scattering.transfer import plan_transfer
from gpushard.planning import axes
from gpushard.planning.plan import plan_read
from gpushard.report import Tally
from gpushard.selecting import expressions
from selection_strategies import basic_keys, orthogonal_keys, point_keys
from zarr_oracle import assert_same_bits, write

SHAPE, SHARD, CHUNK = (24, 40), (12, 20), (6, 10)
CHAINS = {
    "none": [LITTLE],
    "zstd": [LITTLE, ZSTD],
    "transpose, zlib": [
        *(codec("transpose", order=[1, 0]), BIG),
        codec("numcodecs.zlib", level=1),
    ],
    "crc32c, blosc, crc32c": [LITTLE, CRC, blosc("zlib", "bitshuffle", 128), CRC],
    "blosc, fused": [LITTLE, blosc("lz4", "shuffle", 128)],
}
KERNELS = Kernels()
each_chain = pytest.mark.parametrize("chain", CHAINS)


def emulated(seed=0):
    schedule = seed % len(SCHEDULES)
    return EmulatedDevice(KERNELS, load_standin(), seed=seed, schedule=schedule)


def stored(chain):
    """Array of which one shard is missing, and its values."""
    values = np.random.default_rng(5).integers(0, 50, SHAPE, "i4")
    values[: SHARD[0], SHARD[1] :] = -3
    inner = sharding(CHAINS[chain], chunk_shape=list(CHUNK))
    metadata = document([inner], SHAPE, SHARD)
    halves = [np.s_[:, : SHARD[1]], np.s_[SHARD[0] :, SHARD[1] :]]
    made = write(metadata, [(half, values[half]) for half in halves])
    return open_array(OneObject(made.objects)), values


def patches(n, shape=(3, 4)):
    """Keys of `n` patches, at any place of the array."""
    rng = np.random.default_rng(n)
    starts = [rng.integers(0, e - p + 1, n) for e, p in zip(SHAPE, shape, strict=True)]
    return [
        tuple(slice(int(s), int(s) + p) for s, p in zip(start, shape, strict=True))
        for start in zip(*starts, strict=True)
    ]


def scatters_of(device):
    return [what for *_, what in device.log if what.startswith("gs_scatter")]


@each_chain
def test_patches_of_one_shape_are_one_launch_in_few_driver_calls(chain):
    a, values = stored(chain)
    keys = patches(60)
    selections = [expressions.basic(key, SHAPE) for key in keys]
    taken = []
    device = emulated()
    device.refuses = lambda kind, _: taken.append(kind)
    results, _ = read_on_device(a, selections, device)
    for key, result in zip(keys, results, strict=True):
        assert_same_bits(result, values[key])
    kinds = [kind for _, kind, _ in device.log]
    # Missing inner chunks are a batch of their own.
    assert len(scatters_of(device)) == 2
    # The tables of the targets; of each batch a page; and what is stored.
    assert kinds.count("upload") == 4
    n_calls = device.n_calls - len(taken) + taken.count("launch")
    fill, read = 3, 7  # a page, a scatter, a wait; streams, the targets and their event
    assert n_calls - fill - read <= 20


KINDS = {
    "patches": st.sampled_from(patches(9)),
    "inner chunks": st.sampled_from(patches(9, CHUNK)),
    "basic": basic_keys(SHAPE),
    "orthogonal": orthogonal_keys(SHAPE),
    "points": point_keys(SHAPE),
}
PARSED = {"orthogonal": expressions.orthogonal, "points": expressions.points}


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=max(settings.default.max_examples // 3, 10))
@given(data=st.data(), seed=st.integers(0, 9), max_rows=st.sampled_from([4, 4096]))
def test_selections_of_any_kinds_are_read_as_on_the_host(chain, data, seed, max_rows):
    a, _ = stored(chain)
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8))
    keys = [(name, data.draw(KINDS[name])) for name in names]
    selections = [PARSED.get(n, expressions.basic)(key, SHAPE) for n, key in keys]
    want = a.read_many(selections)
    device = emulated(seed)
    results, _ = read_on_device(a, selections, device, max_rows=max_rows)
    for got, expected in zip(results, want, strict=True):
        assert_same_bits(got, expected)


# ---- which go together


def grouped(keys, *, parse=expressions.basic):
    """Groups of the parts that keys of the array make, each in an output of its own."""
    a, _ = stored("none")
    parts = plan_read(a.source.layout, [parse(key, SHAPE) for key in keys]).parts
    layouts = []
    for part in parts:
        out = np.empty(part.selection.shape, "i4")
        transfer = plan_transfer(np.dtype("i4"), out.dtype)
        on_grid = out if parse is expressions.points else part.selection.on_grid(out)
        layouts.append(joining.layout_of(part, on_grid.strides, transfer, CHUNK))
    return joining.group(parts, layouts).groups


def test_patches_go_together_where_strides_and_steps_are_the_same():
    assert grouped([np.s_[:4, :7], np.s_[3:9, 30:37], np.s_[5:6, 1:8]]) == ((0, 1, 2),)
    assert grouped([np.s_[:4, :7], np.s_[:4, :8]]) == ((0,), (1,))
    assert grouped([np.s_[:8:2, :7], np.s_[:4, :7]]) == ((0,), (1,))
    alike = grouped([np.s_[0, :7], np.s_[9, 20:27], np.s_[3:5, :7]])
    assert alike == ((0, 1), (2,))


def test_lists_of_about_as_many_indexes_go_together_and_not_with_slices():
    rows = [
        ([1, 5, 20], np.s_[:4]),
        ([3, 3], np.s_[8:12]),
        (np.s_[:3], np.s_[:4]),
    ]
    assert grouped(rows, parse=expressions.orthogonal) == ((0, 1), (2,))


def test_lists_of_indexes_in_one_launch_are_each_read():
    a, values = stored("zstd")
    lists = [[1, 5, 20, 7], [3, 3, 0, 23], [8, 9, 21, 22], [0, 6, 12, 18]]
    keys = [(rows, np.s_[k : k + 4]) for k, rows in enumerate(lists)]
    selections = [expressions.orthogonal(key, SHAPE) for key in keys]
    device = emulated()
    results, _ = read_on_device(a, selections, device)
    for (rows, columns), result in zip(keys, results, strict=True):
        assert_same_bits(result, values[rows, columns])
    assert len(scatters_of(device)) == 1


def test_points_go_together_whatever_their_shape():
    points = [([1, 5], [2, 3]), ([[1], [2]], [[3], [4]])]
    assert grouped(points, parse=expressions.points) == ((0, 1),)


def test_what_together_may_be_too_much_stays_apart(monkeypatch):
    keys = [np.s_[:4, :7], np.s_[3:9, 30:37]]
    monkeypatch.setattr(joining, "LIMIT", 6 * 10 * 4)
    assert grouped(keys) == ((0,), (1,))
    monkeypatch.setattr(joining, "LIMIT", 6 * 10 * 4 + 1)
    assert grouped(keys) == ((0, 1),)


def test_as_many_axes_as_kernels_take_leave_no_room_for_outputs(monkeypatch):
    keys = [np.s_[:4, :7], np.s_[3:9, 30:37]]
    monkeypatch.setattr(joining, "MAX_AXES", 2)
    assert grouped(keys) == ((0,), (1,))


def test_columns_that_are_computed_stay_apart(monkeypatch):
    monkeypatch.setattr(axes, "LONG_CELLS", 2)
    keys = [np.s_[:, :7], np.s_[:, 30:37]]
    assert grouped(keys) == ((0,), (1,))
    a, values = stored("zstd")
    selections = [expressions.basic(key, SHAPE) for key in [*keys, *keys, *patches(5)]]
    results, _ = read_on_device(a, selections, emulated())
    assert_same_bits(results[0], values[keys[0]])
    assert_same_bits(results[3], values[keys[1]])


def test_elements_of_an_array_without_axes_go_together():
    metadata = document(CHAINS["zstd"], (), ())  # the oldest zarr shards none such
    made = write(metadata, [(..., np.int32(7))])
    a = open_array(OneObject(made.objects))
    device = emulated()
    results, _ = read_on_device(a, [expressions.basic((), ())] * 5, device)
    assert [int(result) for result in results] == [7] * 5
    assert len(scatters_of(device)) == 1


def test_outputs_may_lie_in_any_order_with_gaps_between():
    a, values = stored("zstd")
    device, keys = emulated(), patches(12)
    gaps = np.full((12, 3, 9), -9, "i4")
    buffer = device.allocate(gaps.nbytes)
    device.clear(buffer.address, gaps.nbytes, 0)
    device.drain()
    outputs = [
        DeviceOutput(
            buffer.address + (11 - k) * gaps.strides[0] + 4,
            (3, 4), gaps.strides[1:], gaps.dtype,
        )
        for k in range(12)
    ]  # fmt: skip
    selections = [expressions.basic(key, SHAPE) for key in keys]
    read_to_device(DeviceRead(a.source, selections, outputs, device, Tally()))
    wanted = np.zeros_like(gaps)
    for k, key in enumerate(keys):
        wanted[11 - k, :, 1:5] = values[key]
    assert_same_bits(buffer.read().view("i4").reshape(gaps.shape), wanted)


def read_into(a, selections, dtypes):
    """Results in outputs of these data types."""
    device = emulated()
    outs = [np.empty(s.shape, t) for s, t in zip(selections, dtypes, strict=True)]
    buffers = [device.allocate(out.nbytes) for out in outs]
    outputs = [
        DeviceOutput(buffer.address, out.shape, out.strides, out.dtype)
        for buffer, out in zip(buffers, outs, strict=True)
    ]
    read_to_device(DeviceRead(a.source, selections, outputs, device, Tally()))
    shapes = [(buffer.read(), out) for buffer, out in zip(buffers, outs, strict=True)]
    return [got.view(out.dtype).reshape(out.shape) for got, out in shapes]


def test_outputs_of_another_data_type_are_written_apart():
    a, values = stored("zstd")
    dtypes = ["i4", "f4", "i4", "f4"]
    keys = patches(4)
    results = read_into(a, [expressions.basic(key, SHAPE) for key in keys], dtypes)
    for key, dtype, result in zip(keys, dtypes, results, strict=True):
        assert_same_bits(result, values[key].astype(dtype))
    points = [([1, 5], [2, 3]), ([20, 9], [7, 38])] * 2
    results = read_into(a, [expressions.points(key, SHAPE) for key in points], dtypes)
    for key, dtype, result in zip(points, dtypes, results, strict=True):
        assert_same_bits(result, values[key].astype(dtype))
