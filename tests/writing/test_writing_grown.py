"""Inner chunks that a change cuts are read and encoded together, if they are many."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs import TransposeCodec as Turned

import gpushard
from gpushard.write_options import WriteOptions
from gpushard.writing import grown

SHAPE, INNER, SHARD = (37, 29), (4, 5), (16, 15)
CHAINS = {
    "none": {"compressors": None},
    "zstd": {"compressors": ZstdCodec(level=1)},
    "checked": {"compressors": [BloscCodec(cname="lz4"), Crc32cCodec()]},
    "turned": {"compressors": None, "filters": Turned(order=(1, 0))},
}
INTS = st.integers(-37, 36)


def slices(n: int) -> st.SearchStrategy[slice]:
    return st.slices(n).filter(lambda s: len(range(*s.indices(n))))


@pytest.fixture
def counted(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of what is read of shards; even single inner chunks are read so."""
    shapes, read = [], grown.read_new

    def read_and_tell(source, selection):
        shapes.append(selection.shape)
        return read(source, selection)

    monkeypatch.setattr(grown, "_LEAST_CELLS", 1)
    monkeypatch.setattr(grown, "read_new", read_and_tell)
    return shapes


def new(place: Path, dtype: str = "i4", **how: object) -> gpushard.Array:
    given = {"shape": SHAPE, "chunks": INNER, "shards": SHARD, "dtype": dtype}
    zarr.create_array(str(place), **given | how)
    return gpushard.open_array(place, device="cpu")


def files_of(place: Path) -> dict[str, bytes]:
    found = (path for path in (place / "c").rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each cut inner chunk be decoded alone."""
    monkeypatch.setattr(grown, "_LEAST_CELLS", 1 << 60)


@pytest.mark.parametrize("strategy", ["rewrite", "append_only"])
@given(chain=st.sampled_from([*CHAINS]), data=st.data())
def test_any_assignment_changes_its_elements_and_no_other(
    chain, strategy, tmp_path_factory, data
):
    place = tmp_path_factory.mktemp("grown") / "a"
    new(place, fill_value=3, **CHAINS[chain])
    options = gpushard.Options(
        threads=2, write=WriteOptions(strategy=strategy, max_unused_fraction=0.9)
    )
    a = gpushard.open_array(place, device="cpu", options=options)
    want = np.full(SHAPE, 3, "i4")
    want[:20, 4:] = np.arange(20 * 25).reshape(20, 25)
    a[:20, 4:] = want[:20, 4:]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grown, "_LEAST_CELLS", data.draw(st.sampled_from([1, 2, 8])))
        patch.setattr(
            grown, "_MOST_NBYTES", data.draw(st.sampled_from([80, 500, 1 << 20]))
        )
        patch.setattr(grown, "_READ_NBYTES", data.draw(st.sampled_from([0, 80, 9999])))
        match data.draw(st.sampled_from(["slices", "lists", "points", "mask"])):
            case "slices":
                key = data.draw(st.tuples(slices(SHAPE[0]), slices(SHAPE[1])))
                want[key] = a[key] = rng.integers(100, 999, want[key].shape)
            case "lists":
                rows = data.draw(st.lists(INTS, min_size=1, max_size=30, unique=True))
                rows = [*{row % 37: row for row in rows}.values()]
                columns = data.draw(slices(SHAPE[1]))
                values = rng.integers(100, 999, want[rows, columns].shape)
                a.oindex[rows, columns] = want[rows, columns] = values
            case "points":
                at = tuple(rng.integers(0, n, 30) for n in SHAPE)
                want[at] = a.vindex[at] = rng.integers(100, 999, 30)
            case _:
                mask = rng.random(SHAPE) < data.draw(st.sampled_from([0.02, 0.3, 1]))
                want[mask] = a[mask] = rng.integers(100, 999, int(mask.sum()))
    assert np.array_equal(a[...], want)
    assert np.array_equal(zarr.open_array(str(place), mode="r")[...], want)
    shutil.rmtree(place)


@pytest.mark.parametrize("chain", CHAINS)
def test_shards_are_those_that_a_change_of_each_inner_chunk_alone_makes(
    chain, tmp_path, counted, monkeypatch
):
    how = {"shape": (48, 45), **CHAINS[chain]}
    values = np.random.default_rng(1).integers(0, 99, (48, 45)).astype("i4")
    both = [new(tmp_path / name, **how) for name in "ab"]
    for a in both:
        a[...] = values
    both[0][3:41:2, 7] = both[0][5:40, 8:31] = 7
    assert len(counted) > 4
    alone(monkeypatch)
    counted.clear()
    both[1][3:41:2, 7] = both[1][5:40, 8:31] = 7
    assert not counted
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


GAPS = {
    "steps": np.s_[1:48:9, 2::11],
    "lists": np.ix_([0, 1, 9, 40, 41], [3, 20, 21, 44]),
    "points": (np.array([0, 9, 9, 40, 47]), np.array([44, 3, 14, 21, 0])),
}


@pytest.mark.parametrize("key", GAPS.values(), ids=GAPS)
def test_inner_chunks_in_between_are_read_and_stay_as_they_are(
    key, tmp_path, counted, monkeypatch
):
    values = np.random.default_rng(1).integers(0, 99, (48, 45)).astype("i4")
    values[4:8, 5:20] = 0  # missing ones
    both = [new(tmp_path / name, shape=(48, 45)) for name in "ab"]
    for a in both:
        a[...] = values
    taken = np.zeros((48, 45), bool)
    taken[key] = True
    monkeypatch.setattr(grown, "_LEAST_CELLS", 2)
    both[0].vindex[np.nonzero(taken)] = 0
    assert counted
    counted.clear()
    alone(monkeypatch)
    both[1].vindex[np.nonzero(taken)] = 0
    assert not counted
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert np.array_equal(both[0][...], np.where(taken, 0, values))


@pytest.mark.parametrize(("nbytes", "is_read"), [(53, False), (54, True)])
def test_large_inner_chunks_in_between_are_not_read(
    nbytes, is_read, tmp_path, counted, monkeypatch
):
    monkeypatch.setattr(grown, "_READ_NBYTES", nbytes)
    a = new(tmp_path / "a", shape=(20, 5), shards=(20, 5))  # of 80 bytes each
    a[...] = 5
    a.oindex[[1, 17], :3] = 6  # of five, three between them
    assert not counted
    a.oindex[[1, 9, 17], :3] = 7  # of five, two between them
    assert counted == ([(20, 5)] if is_read else [])


def test_a_damaged_inner_chunk_in_between_stays_as_it_is(tmp_path, counted):
    a = new(tmp_path / "a", shape=(20, 5), shards=(20, 5), **CHAINS["checked"])
    a[...] = np.arange(100).reshape(20, 5)
    shard = tmp_path / "a" / "c" / "0" / "0"
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(bytes(data[-5 * 16 - 4 : -4]), "<u8").reshape(5, 2)
    at, nbytes = map(int, index[1])
    data[at + 20] ^= 0xFF
    shard.write_bytes(data)
    a[::8] = 6
    assert counted == [(20, 5)]
    assert bytes(data[at : at + nbytes]) in shard.read_bytes()
    assert np.array_equal(
        a[8:],
        [[6] * 5 if k % 8 == 0 else range(5 * k, 5 * k + 5) for k in range(8, 20)],
    )
    with pytest.raises(gpushard.CorruptShardError):
        a[4]


def test_a_box_that_covers_few_of_its_inner_chunks_is_read_once(tmp_path, counted):
    a = new(tmp_path / "a", shape=(16, 15), fill_value=1)
    a[...] = 5
    a[1:15, 2:14] = 6  # two of twelve are covered
    assert counted == [(16, 15)]
    assert a[...].sum() == 5 * 16 * 15 + 14 * 12


def test_inner_chunks_at_the_edge_of_the_array_are_changed_alone(tmp_path, counted):
    a = new(tmp_path / "a")
    a[...] = 5
    a[:, 23:28] = 6
    assert sorted(counted) == [(4, 5), (16, 5), (16, 5)]
    assert a[...].sum() == 5 * 37 * 29 + 37 * 5
    a[36:, :] = 6
    assert len(counted) == 3


@pytest.mark.parametrize("key", [np.s_[:, 1], np.s_[1::3, 2:27], np.s_[1:36, 1:28]])
def test_elements_beyond_an_array_that_others_have_enlarged_stay(
    tmp_path, counted, key
):
    a = new(tmp_path / "a")
    a[...] = 5
    zarr.open_array(str(tmp_path / "a")).resize((48, 45))
    larger = gpushard.open_array(tmp_path / "a", device="cpu")
    larger[...] = 7
    want = np.full((48, 45), 7)
    want[:37, :29][key] = 6
    a[key] = 6
    assert counted
    assert np.array_equal(larger[...], want)


def test_what_is_read_at_once_stays_small(tmp_path, counted, monkeypatch):
    a = new(tmp_path / "a", shape=(160, 15), shards=(160, 15))
    a[...] = 5
    most = 8 * 4 * np.prod(INNER)
    monkeypatch.setattr(grown, "_MOST_NBYTES", most)
    a[:, 3] = 6
    assert len(counted) == 8  # of 40 inner chunks, 5 at a time
    assert all(4 * np.prod(shape) <= most for shape in counted)


def test_inner_chunks_between_those_that_are_written_stay_missing(tmp_path, counted):
    options = gpushard.Options(write=WriteOptions(write_empty_chunks=True))
    new(tmp_path / "a", shape=(160,), chunks=(4,), shards=(160,), fill_value=1)
    a = gpushard.open_array(tmp_path / "a", device="cpu", options=options)
    a[0] = 5
    a[::10] = 5
    a.oindex[[1, 101, 141]] = 5
    a.vindex[[2, 102, 155]] = 5
    a[np.arange(160) % 10 == 0] = 5
    assert len(counted) == 4
    counted.clear()
    index = np.frombuffer((tmp_path / "a" / "c" / "0").read_bytes()[-644:-4], "<u8")
    is_there = index.reshape(40, 2)[:, 0] < 2**64 - 1
    assert np.flatnonzero(is_there).tolist() == sorted(
        {i // 4 for i in (*range(0, 160, 10), 1, 101, 141, 155)}
    )
    a[:9] = 6
    assert counted == [(4,)]  # of three, two are covered


def test_a_file_that_others_replace_meanwhile_is_not_mixed_with_the_next(
    tmp_path, counted, monkeypatch
):
    """They do not know of the lock. What is written is the old shard, changed."""
    a = new(tmp_path / "a", shape=(16, 15))
    a[...] = 5
    shard, read = tmp_path / "a" / "c" / "0" / "0", grown.read_new
    b = new(tmp_path / "b", shape=(16, 15))
    b[...] = 9

    def replace_and_read(source, selection):
        os.replace(tmp_path / "b" / "c" / "0" / "0", shard)
        return read(source, selection)

    monkeypatch.setattr(grown, "read_new", replace_and_read)
    a[:, 3] = 6
    assert len(counted) == 1
    want = np.full((16, 15), 5)
    want[:, 3] = 6
    assert np.array_equal(a[...], want)


def test_a_damaged_inner_chunk_is_named_as_one_that_is_changed_alone(
    tmp_path, counted, monkeypatch
):
    a = new(tmp_path / "a", shape=(16, 15), **CHAINS["checked"])
    a[...] = np.arange(15)
    shard = tmp_path / "a" / "c" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[20] ^= 0xFF
    shard.write_bytes(data)
    told = []
    for _ in range(2):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[:, 3:14] = 6
        told.append(str(caught.value))
        alone(monkeypatch)
    assert len(counted) == 1
    assert told[0] == told[1]
    assert shard.read_bytes() == bytes(data)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_shard_that_was_replaced_takes_no_room_on_the_disk(tmp_path, counted):
    a = new(tmp_path / "a")
    a[...] = 5
    a[:, 3] = 6
    assert counted
    fds = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(fd) for fd in fds if fd.is_symlink()]
    assert not [t for t in targets if str(tmp_path) in t and t.endswith("(deleted)")]


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "str"},
        {"shards": None, "compressors": ZstdCodec()},
        {
            "shards": None,
            "chunks": SHARD,
            "serializer": ShardingCodec(
                chunk_shape=(8, 15), codecs=[ShardingCodec(chunk_shape=(4, 5))]
            ),
            "compressors": None,
        },
    ],
    ids=["text", "without shards", "nested"],
)
def test_where_inner_chunks_are_not_read_at_once_they_are_changed_alone(
    how, tmp_path, counted
):
    a = new(tmp_path / "a", **how)
    old, value = ("x", "y") if a.dtype.kind == "T" else (5, 6)
    a[...] = old
    a[:, 3] = value
    assert not counted
    assert a[:, 3].tolist() == [value] * 37
    assert a[:, 4].tolist() == [old] * 37
