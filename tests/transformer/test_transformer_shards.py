"""What lies below a `ShardedStore`: faulty stores, and mappings of other values.

No write to a shard loses its other chunks.
"""

from __future__ import annotations

import numpy as np
import pytest
from zarr.storage import MemoryStore

import gpushard
from gpushard.stores.key_value import MappingStore
from gpushard.transformer import ShardedStore, transformed
from historic_arrays import shard

KEY = "data/root/a/c0/0"  # of the shard, and of its first chunk
WHOLE = {KEY: shard([b"aaaa", b"bb", None, b"d"], gap=b"~~")}


class Faulty(MappingStore):
    """A store that changes all that it answers to one of its operations."""

    def __init__(self, values, change, n_before):
        super().__init__(values)
        self.change, self.n_before = change, n_before

    def get_partial_values(self, key_ranges):
        found = super().get_partial_values(key_ranges)
        self.n_before -= 1
        return self.change(found) if self.n_before == -1 else found


def widened(found):
    """As many elements as there are bytes."""
    return [np.frombuffer(value, "u1").astype("i4") for value in found]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found[:-1], "another number of requests"),
        (lambda found: [*found, b""], "another number of requests"),
        (widened, "too short to hold its index|does not lie within"),
        (lambda found: [value[:-1] for value in found], "too short|does not lie"),
    ],
    ids=["fewer", "more", "wider", "shorter"],
)
@pytest.mark.parametrize("n_before", [0, 1], ids=["indexes", "chunks"])
def test_a_write_to_a_part_loses_no_chunk_to_a_faulty_answer(change, words, n_before):
    values = dict(WHOLE)
    store = ShardedStore(Faulty(values, change, n_before), (2, 2), "a")
    with pytest.raises(gpushard.GpushardError, match=words):
        store[KEY] = b"new"
    assert values == WHOLE
    store[KEY] = b"new"
    found = [store.get(f"data/root/a/c{at}") for at in ("0/0", "0/1", "1/0", "1/1")]
    assert found == [b"new", b"bb", None, b"d"]


def test_a_mapping_that_zarr_stores_arrays_in_is_refused_and_its_store_is_taken():
    arrays = {}
    written = gpushard.create_array(
        arrays,
        "a",
        format="v3-draft-transformer",
        shape=(4,),
        dtype="u1",
        chunks=(1,),
        shards=(2,),
        compressors=None,
    )
    written[...] = [1, 2, 3, 4]
    for use in (
        lambda: transformed(arrays, "a"),
        lambda: ShardedStore(arrays, (2,), "a").get("data/root/a/c3"),
        lambda: ShardedStore(arrays, (2,), "a").set("data/root/a/c3", b"\x07"),
    ):
        with pytest.raises(gpushard.OptionError, match=r"not bytes.*MemoryStore"):
            use()
    view = transformed(MemoryStore(arrays), "a")
    assert view.get_partial_values([("data/root/a/c3", (0, None))]) == [b"\x04"]
    view.set("data/root/a/c3", b"\x07")
    assert gpushard.open_array(arrays, "a")[...].tolist() == [1, 2, 3, 7]


@pytest.mark.parametrize(
    "kind", [bytearray, memoryview, lambda data: np.frombuffer(data, "u1")]
)
def test_a_mapping_may_have_any_buffers_and_answers_with_bytes(kind):
    below = {"k": kind(b"abc")}
    assert ShardedStore(below, (2,), "a").get("k") == b"abc"
    (found,) = ShardedStore(below, (2,), "a").get_partial_values([("k", (1, 1))])
    assert type(found) is bytes
    assert found == b"b"
