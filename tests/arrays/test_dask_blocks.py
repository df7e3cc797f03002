"""dask arrays: aligned with shards, told apart, and computed by other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec

import gpushard
from s3_server import make_bucket, s3_server
from zarr_oracle import assert_same_bits

da = pytest.importorskip("dask.array", reason="the extra `dask` is not installed")

SHAPE = (33, 40)
VALUES = np.random.default_rng(3).normal(size=SHAPE).astype("f4")


def stored(place, values=VALUES, **how):
    how = {"chunks": (8, 10), "shards": (16, 20)} | how
    # Not with data=: zarr 3.1.0 then loses inner chunks.
    z = zarr.create_array(
        place, shape=values.shape, dtype=values.dtype, overwrite=True, **how
    )
    z[...] = values
    return gpushard.open_array(place)


@pytest.fixture
def a(tmp_path):
    return stored(tmp_path / "a")


def test_blocks_are_shards_and_hold_what_the_array_holds(a):
    lazy = a.to_dask()
    assert lazy.chunks == ((16, 16, 1), (20, 20))
    assert lazy.dtype == a.dtype
    assert type(lazy._meta) is np.ndarray
    assert_same_bits(lazy.compute(), VALUES)
    assert_same_bits(lazy.blocks[1, 1].compute(), VALUES[16:32, 20:])


def test_more_blocks_than_fit_the_memory_are_refused(a, monkeypatch):
    def fills_it(*_, **__):
        raise MemoryError

    monkeypatch.setattr("dask.array.core.normalize_chunks", fills_it)
    with pytest.raises(gpushard.OptionError, match="blocks: they are too many for"):
        a.to_dask(chunks=(1, 1))


@pytest.mark.parametrize(
    ("shards", "chunks"),
    [((8, 8), None), (None, None), ((8, 8), (1, 1)), ((8, 8), {1: 7})],
)
def test_more_blocks_than_dask_can_list_are_refused_at_once(
    shards, chunks, tmp_path, monkeypatch
):
    monkeypatch.setattr("dask.array.core.normalize_chunks", None)
    shape = (0 if chunks == (1, 1) else 10**4, 10**18)
    zarr.create_array(tmp_path, shape=shape, chunks=(4, 4), shards=shards, dtype="u1")
    with pytest.raises(gpushard.OptionError, match="too many for its lists") as told:
        gpushard.open_array(tmp_path).to_dask(chunks)
    assert int(told.value.got) > 10**7


def test_blocks_along_more_axes_than_a_float_counts_are_refused(tmp_path):
    zarr.create_array(tmp_path, shape=(10**18,) * 20, chunks=(4,) * 20, dtype="u1")
    with pytest.raises(gpushard.OptionError, match="too many for its lists"):
        gpushard.open_array(tmp_path).to_dask()


def test_many_blocks_along_several_axes_are_left_to_the_graph(tmp_path):
    shape = (10**5, 10**5)
    zarr.create_array(tmp_path, shape=shape, chunks=(4, 4), shards=(8, 8), dtype="u1")
    assert gpushard.open_array(tmp_path).to_dask().npartitions == (10**5 // 8) ** 2


@pytest.mark.parametrize(
    "chunks", [(0, 1), (2,), (2, 2, 2), "x", 1.5, ((5, 4), (40,)), (None, "y")]
)
def test_blocks_that_dask_does_not_make_are_refused(a, chunks):
    with pytest.raises(gpushard.OptionError, match="dask makes no such blocks") as told:
        a.to_dask(chunks)
    assert told.value.got == repr(chunks)
    assert told.value.hint


@pytest.fixture
def named(tmp_path):
    return stored(tmp_path / "named", dimension_names=("y", "x"))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ({}, ((33,), (40,))),
        ({"y": 11}, ((11, 11, 11), (40,))),
        ({"x": (30, 10), 0: -1}, ((33,), (30, 10))),
        ({-1: 20}, ((33,), (20, 20))),
        ({np.int64(0): 11, "x": None}, ((11, 11, 11), (40,))),
    ],
)
def test_blocks_are_given_by_the_name_or_the_number_of_their_axis(
    named, chunks, expected
):
    lazy = named.to_dask(chunks)
    assert lazy.chunks == expected
    assert_same_bits(lazy.compute(), VALUES)


@pytest.mark.parametrize(
    "chunks", [{"z": 8}, {2: 8}, {-3: 8}, {None: 8}, {"y": 8, 0: 8}, {(0, 1): 8}]
)
def test_blocks_of_no_axis_are_refused(named, chunks):
    with pytest.raises(gpushard.OptionError, match="an axis that") as told:
        named.to_dask(chunks)
    assert told.value.expected == "'y', 'x', 0, 1"
    assert told.value.got == ", ".join(map(repr, chunks))


def test_dimensions_of_one_name_or_none_have_numbers_only(tmp_path):
    for names in (("y", "y"), (None, None), None):
        a = stored(tmp_path / "a", dimension_names=names)
        for name in {"y", *(names or ())}:
            with pytest.raises(gpushard.OptionError) as told:
                a.to_dask({name: 8})
            assert told.value.expected == "0, 1"


def test_only_what_is_wanted_of_a_block_is_read(a, monkeypatch):
    read, keys = gpushard.Array.read, []
    lazy = a.to_dask()
    monkeypatch.setattr(
        gpushard.Array, "read", lambda self, k: keys.append(k) or read(self, k)
    )
    assert_same_bits(lazy[17:30:2, 5].compute(), VALUES[17:30:2, 5])
    assert keys == [(slice(17, 30, 2), 5)]


@pytest.mark.parametrize(
    "key",
    [
        np.s_[::-1],
        np.s_[[4, 1, 30], :],
        np.s_[5, [1, 2]],
        np.s_[None, 3],
        np.s_[..., 0],
    ],
    ids=str,
)
def test_indexing_means_what_it_means_in_numpy(a, key):
    assert_same_bits(a.to_dask()[key].compute(), VALUES[key])


@pytest.mark.parametrize(
    "keys",
    [
        [np.s_[[4, 1, 30]], np.s_[:, 3:9], np.s_[1]],
        [np.s_[3:20, 1:], np.s_[:, [7, 2, 2]], np.s_[::-2]],
        [np.s_[:, [7, 2]], np.s_[[5, 1]]],
        [np.s_[[5, 1]], np.s_[None, :, 4], np.s_[0]],
        [np.s_[2], np.s_[[8, 3]], np.s_[None]],
    ],
    ids=str,
)
def test_indexing_again_means_what_it_means_in_numpy(a, keys):
    """dask joins keys to one, as far as it can, before it reads."""
    lazy, expected = a.to_dask(), VALUES
    for key in keys:
        lazy, expected = lazy[key], expected[key]
    assert_same_bits(lazy.compute(), expected)


def test_blocks_can_be_chosen(a):
    assert a.to_dask(chunks=(8, -1)).chunks == ((8, 8, 8, 8, 1), (40,))
    assert_same_bits(a.to_dask(chunks=(7, 13)).compute(), VALUES)


def test_chunks_of_arrays_without_shards_are_joined(tmp_path):
    import dask

    a = stored(tmp_path / "a", shards=None)
    assert a.to_dask().chunks == ((33,), (40,))
    with dask.config.set({"array.chunk-size": "1300B"}):
        blocks = a.to_dask().chunks
    assert {n % 8 for n in blocks[0][:-1]} | {n % 10 for n in blocks[1]} == {0}
    assert len(blocks[0]) > 1
    assert_same_bits(a.to_dask().compute(), VALUES)


@pytest.fixture
def uneven(tmp_path):
    """Places of arrays whose shards, and whose chunks, differ in length."""
    if zarr.config.get("array.rectilinear_chunks", None) is None:
        pytest.skip("this zarr has no rectilinear grids")
    lengths = [[8, 16, 9], [10, 30]]
    with zarr.config.set({"array.rectilinear_chunks": True}):
        stored(tmp_path / "shards", chunks=(1, 10), shards=lengths)
        stored(tmp_path / "chunks", chunks=lengths, shards=None)
    return tmp_path


def test_blocks_are_shards_of_different_lengths(uneven):
    a = gpushard.open_array(uneven / "shards")
    assert a.block_shape is None
    lazy = a.to_dask()
    assert lazy.chunks == ((8, 16, 9), (10, 30))
    assert_same_bits(lazy.compute(), VALUES)
    joined = gpushard.concat([a, a]).to_dask()
    assert joined.chunks == ((8, 16, 9) * 2, (10, 30))


def test_chunks_of_different_lengths_are_joined_whole(uneven):
    import dask

    a = gpushard.open_array(uneven / "chunks")
    with dask.config.set({"array.chunk-size": "2000B"}):
        lazy = a.to_dask()
    assert len(lazy.chunks[0]) > 1
    assert {*np.cumsum(lazy.chunks[0])} <= {8, 24, 33}
    assert {*np.cumsum(lazy.chunks[1])} <= {10, 40}
    assert_same_bits(lazy.compute(), VALUES)


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_chunks_of_text_are_joined_as_if_it_were_short(tmp_path):
    import dask

    words = np.array([f"word {i}" for i in range(40)], np.dtypes.StringDType())
    a = stored(tmp_path / "a", words, chunks=4, shards=None)
    assert a.to_dask().chunks == ((40,),)
    with dask.config.set({"array.chunk-size": "200B"}):  # 12 elements of 16 bytes
        lazy = a.to_dask()
    assert lazy.chunks == ((12, 12, 12, 4),)
    assert lazy.compute().tolist() == words.tolist()


def test_arrays_of_no_dimension_become_dask_arrays(tmp_path):
    zarr.create_array(tmp_path / "a", data=np.float32(2.5))
    assert gpushard.open_array(tmp_path / "a").to_dask().compute() == 2.5


def test_concatenated_arrays_keep_their_own_blocks(tmp_path):
    parts = [stored(tmp_path / name, VALUES[:n]) for name, n in (("a", 33), ("b", 20))]
    lazy = gpushard.concat(parts).to_dask()
    assert lazy.chunks == ((16, 16, 1, 16, 4), (20, 20))
    assert_same_bits(lazy.compute(), np.concatenate([VALUES, VALUES[:20]]))
    assert_same_bits(pickle.loads(pickle.dumps(lazy)).compute(), lazy.compute())


def test_concatenated_arrays_keep_the_blocks_along_their_other_axes(a):
    joined = gpushard.concat([a, a], axis=1)
    assert joined.to_dask().chunks == ((16, 16, 1), (20, 20) * 2)
    assert joined.to_dask(chunks=(8, -1)).chunks == ((8, 8, 8, 8, 1), (80,))
    assert joined.to_dask(chunks={1: 40}).chunks == ((33,), (40, 40))
    assert_same_bits(joined.to_dask().compute(), np.hstack([VALUES, VALUES]))


def name_in_another_process(place):
    code = f"import gpushard; print(gpushard.open_array({str(place)!r}).to_dask().name)"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def test_names_are_those_of_the_data(tmp_path):
    place = tmp_path / "a"
    name = stored(place).to_dask().name
    again = gpushard.open_array(place)
    assert again.to_dask().name == name == name_in_another_process(place)
    assert again.to_dask(chunks=(33, 40)).name != name
    assert stored(tmp_path / "b").to_dask().name != name
    assert stored(place).to_dask().name != name  # written anew


def test_a_fill_value_that_numpy_cannot_print_has_a_name(tmp_path):
    far = np.full(4, 2**62).view("M8[10us]")  # an OverflowError of newer NumPy
    a = stored(tmp_path, far, chunks=2, shards=None, fill_value=far[0])
    assert_same_bits(a.to_dask().compute(), far)


def test_graphs_hold_addresses_and_unpickle_where_the_store_is_not(a, tmp_path):
    graph = pickle.dumps(a.to_dask().dask)
    assert VALUES.tobytes()[:64] not in graph
    assert len(graph) < 20_000
    (tmp_path / "a").rename(tmp_path / "away")
    lazy = pickle.loads(graph)  # as a scheduler does
    again = pickle.loads(pickle.dumps(lazy))
    (tmp_path / "away").rename(tmp_path / "a")
    for dsk in (lazy, again):
        block = da.Array(dsk, a.to_dask().name, a.to_dask().chunks, a.dtype)
        assert_same_bits(block.compute(scheduler="sync"), VALUES)


def test_a_process_opens_an_array_anew_that_was_made_anew(tmp_path):
    for endian in ("little", "big"):
        lazy = stored(tmp_path / "a", serializer=BytesCodec(endian=endian)).to_dask()
        elsewhere = pickle.loads(pickle.dumps(lazy))
        assert_same_bits(elsewhere.compute(scheduler="synchronous"), VALUES)


def test_without_dask_the_error_says_what_to_install(a, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(gpushard.UnsupportedError, match=r"install 'gpushard\[dask\]'"):
        a.to_dask()


def test_results_of_a_device_give_metas_of_the_device(a, monkeypatch):
    from cuda_host.arrays import EmulatedArray
    from cuda_host.device import EmulatedDevice
    from cuda_host.launch import Kernels
    from cuda_host.standin import load_standin
    from gpushard.dask_blocks import GraphArray

    device = EmulatedDevice(Kernels(), load_standin())
    on_device = gpushard.open_array(a.source.store, device=device)
    empty = on_device.read((slice(0, 0),) * 2)
    assert isinstance(empty, EmulatedArray)
    assert empty.shape == (0, 0)
    monkeypatch.setattr(da, "from_array", lambda *_, meta, **__: meta)
    assert isinstance(on_device.to_dask(), EmulatedArray)
    assert_same_bits(GraphArray(on_device, "token")[3:5, 7].get(), VALUES[3:5, 7])


@pytest.fixture(scope="module")
def cluster():
    reason = "dask.distributed is not installed"
    distributed = pytest.importorskip("distributed", reason=reason)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",  # any port: others may have a cluster, too
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def check_mean(client, a):
    """The mean of an array, computed by two processes that are not this one."""
    import os

    def where(block):
        return np.full((1, 1), os.getpid())

    lazy = a.to_dask()
    mean = lazy.mean(dtype="f8").compute(scheduler=client)
    assert mean == pytest.approx(VALUES.mean(dtype="f8"), rel=1e-12)
    # One block each, lest one worker be done before the other has begun.
    pids = [
        client.compute(
            lazy.blocks[0, k].map_blocks(where, dtype="i8", chunks=(1, 1)),
            workers=[worker],
        ).result()[0, 0]
        for k, worker in enumerate(client.scheduler_info(n_workers=-1)["workers"])
    ]
    assert len({*pids, os.getpid()}) == 3


@pytest.mark.network
def test_two_processes_compute_a_mean_from_disk(cluster, a):
    check_mean(cluster, a)


@pytest.mark.network
def test_two_processes_compute_a_mean_from_s3(cluster, monkeypatch):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    from zarr.storage import ObjectStore

    from gpushard.stores.remote_url import open_url

    with s3_server() as endpoint:
        options = make_bucket(endpoint, monkeypatch)
        writer = open_url("s3://bucket/a.zarr", options).object_store
        stored(ObjectStore(writer))
        a = gpushard.open_array("s3://bucket/a.zarr", storage_options=options)
        check_mean(cluster, a)
