"""Faulty stores below a `ShardedStore`: no write to a shard loses its other chunks."""

from __future__ import annotations

import numpy as np
import pytest

import gpushard
from gpushard.stores.key_value import MappingStore
from gpushard.transformer import ShardedStore
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
