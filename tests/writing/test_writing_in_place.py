"""A write to a part of a shard reads no more of it than it has to."""

from __future__ import annotations

import numpy as np
import pytest
from zarr.storage import MemoryStore

import gpushard
from gpushard.options import Options
from gpushard.stores.local.file_bytes import FileBytes
from gpushard.stores.writers import writer_of
from gpushard.write_options import WriteOptions
from gpushard.writing.assign import WriteSession
from gpushard.writing.shard import Region, StoredShard
from zarr_oracle import assert_same_bits

PAIRS = [
    ("rewrite", "end"),
    ("rewrite", "start"),
    ("append_only", "end"),
    ("random_write", "start"),
    ("fixed_order", "start"),
    ("fixed_order", "end"),
]
each_pair = pytest.mark.parametrize(("strategy", "location"), PAIRS)


def new(place, strategy, location, **changed) -> gpushard.Array:
    """One shard of 4 x 4 inner chunks of noise."""
    write = WriteOptions(strategy=strategy, max_unused_fraction=1)
    given = {
        "shape": (16, 16),
        "dtype": "u4",
        "chunks": (4, 4),
        "shards": {"shape": (16, 16), "index_location": location},
        "options": Options(write=write),
    }
    a = gpushard.create_array(place, **given | changed)
    a[...] = noise()
    return a


def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 2**32, (16, 16), "u4")


@pytest.fixture
def spans(monkeypatch):
    """Byte ranges that are read of files; what is only copied is not."""
    found: list[tuple[int, int]] = []
    read = FileBytes.__getitem__

    def told(self, span):
        data = read(self, span)
        found.append((span.start, span.start + len(data)))
        return data

    monkeypatch.setattr(FileBytes, "__getitem__", told)
    return found


def ranges(a, place, entries) -> list[tuple[int, int]]:
    """Byte ranges of the index and of some inner chunks of the only shard."""
    region = Region.of_object(a.source, (0, 0))
    data = np.fromfile(place / "c/0/0", np.uint8)
    index = StoredShard.parse(region, data).index
    starts = [int(index.offset[entry]) for entry in entries]
    sizes = [int(index.nbytes[entry]) for entry in entries]
    found = [(start, start + n) for start, n in zip(starts, sizes, strict=True)]
    return sorted([region.index_range(len(data)), *found])


@each_pair
def test_the_index_and_the_inner_chunks_that_change_are_read(
    strategy, location, tmp_path, spans
):
    a, want = new(tmp_path, strategy, location), noise()
    expected = ranges(a, tmp_path, [5, 6])
    a[5, 5:10] = want[5, 5:10] = 1  # parts of two inner chunks
    # "fixed_order" reads the index once more, to spoil it.
    assert sorted(set(spans)) == expected
    spans.clear()
    expected = ranges(a, tmp_path, [])
    a[4:8, 4:8] = want[4:8, 4:8] = 2  # one inner chunk, all of it
    assert sorted(set(spans)) == expected
    assert_same_bits(gpushard.open_array(tmp_path, device="cpu")[...], want)


@each_pair
def test_an_inner_chunk_that_is_damaged_keeps_no_write_from_others(
    strategy, location, tmp_path
):
    a, want = new(tmp_path, strategy, location), noise()
    (_, (start, stop)) = sorted(ranges(a, tmp_path, [9]), reverse=location == "end")
    with (tmp_path / "c/0/0").open("r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))
    a[0, 0] = want[0, 0] = 1
    np.testing.assert_array_equal(a[:8], want[:8])
    with pytest.raises(gpushard.CorruptShardError):
        a[8, 4] = 1


@each_pair
def test_a_damaged_entry_that_stays_is_told_and_the_file_stays_too(
    strategy, location, tmp_path
):
    """Behind a longer file it could name bytes of another inner chunk."""
    a = new(tmp_path, strategy, location)
    path = tmp_path / "c/0/0"
    region = Region.of_object(a.source, (0, 0))
    data = bytearray(path.read_bytes())
    entries = StoredShard.parse(region, np.frombuffer(data, np.uint8)).entries()
    entries[9] = len(data) + 1, 64
    start, stop = region.index_range(len(data))
    index = WriteSession(a.source).encoder.index_bytes(region, entries)
    data[start:stop] = index.tobytes()
    path.write_bytes(data)
    with pytest.raises(gpushard.CorruptShardError):
        a[0, 0] = 1
    assert path.read_bytes() == data
    assert gpushard.repair(a) == []


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_object_larger_than_its_elements_need_is_not_written_to_in_part(
    in_memory, tmp_path
):
    store = MemoryStore() if in_memory else tmp_path
    a = gpushard.create_array(
        store, shape=8, dtype="u4", chunks=8, compressors=None, device="cpu"
    )
    large = np.zeros(1 << 20, np.uint8)
    writer_of(a.source.store).put("c/0", [large])
    with pytest.raises(gpushard.CorruptShardError, match="larger than any encoding"):
        a[3] = 1
    assert a.source.store.get("c/0") == large.tobytes()
    a[...] = np.arange(8)
    assert a[...].tolist() == list(range(8))


def test_a_file_that_became_shorter_is_an_error_of_the_store(tmp_path, monkeypatch):
    a = new(tmp_path, "append_only", "end")
    before = (tmp_path / "c/0/0").read_bytes()
    monkeypatch.setattr("os.preadv", lambda *_: 0)
    with pytest.raises(gpushard.StoreError, match="shorter"):
        a[0, 0] = 1
    assert (tmp_path / "c/0/0").read_bytes() == before


def test_what_does_not_fit_in_place_is_laid_out_from_all_of_the_shard(tmp_path):
    a, want = new(tmp_path, "fixed_order", "end"), noise()
    a[:4, :4] = 1
    a[:4, :3] = want[:4, :3]  # larger than what lay there
    want[:4, 3] = 1
    assert_same_bits(gpushard.open_array(tmp_path, device="cpu")[...], want)
