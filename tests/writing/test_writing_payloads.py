"""Encoded inner chunks as columns, and the shards that they make up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.codecs.encoded import LARGE_NBYTES, EncodedArrays
from gpushard.errors import CorruptShardError
from gpushard.planning.index import parse_index
from gpushard.stores.local.file_bytes import FileBytes, join_pieces
from gpushard.writing.payloads import Assembly, Payloads
from gpushard.writing.shard import EMPTY, StoredShard, blank_entries

SIZES = [0, 1, 5, LARGE_NBYTES]


def items_of(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, n).astype(np.uint8) for n in sizes]


@pytest.mark.parametrize("make", [EncodedArrays.of, EncodedArrays.joined])
@pytest.mark.parametrize("sizes", [[], [0], SIZES, [LARGE_NBYTES + 1, LARGE_NBYTES]])
@pytest.mark.parametrize("kind", [bytes, memoryview, np.asarray])
def test_items_are_given_back_byte_for_byte(make, sizes, kind):
    items = items_of(sizes)
    encoded = make([kind(item) for item in items])
    assert encoded.nbytes.tolist() == sizes
    assert [one.tobytes() for one in encoded.items()] == [i.tobytes() for i in items]


def test_small_items_share_a_buffer_and_large_ones_are_not_copied():
    assert len(EncodedArrays.of(items_of([1, 2, 3])).buffers) == 1
    large = items_of([LARGE_NBYTES, LARGE_NBYTES])
    assert all(map(np.shares_memory, EncodedArrays.of(large).buffers, large))


def test_rows_are_items_of_one_size():
    rows = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert [
        one.tolist() for one in EncodedArrays.of_rows(rows).items()
    ] == rows.tolist()
    assert [len(one) for one in EncodedArrays.of_rows(rows[:, :0]).items()] == [0, 0, 0]


def shard_of(found: dict[int, bytes], n_entries: int, as_file=None) -> StoredShard:
    """A shard without an index at its end, whose inner chunks lie by entry."""
    entries, at = blank_entries(n_entries), 0
    for entry, data in sorted(found.items()):
        entries[entry] = at, len(data)
        at += len(data)
    data = np.frombuffer(b"".join(v for _, v in sorted(found.items())), np.uint8)
    index = parse_index(entries, nbytes=at)
    if as_file is not None:
        as_file.write(data.tobytes())
        as_file.flush()
        data = FileBytes(as_file.fileno(), at)
    return StoredShard(data, index)


@st.composite
def shards(draw):
    """A stored shard, changes to it in batches, and an order of its entries."""
    n = draw(st.integers(1, 12))
    payload = st.binary(max_size=4)
    stored = draw(st.dictionaries(st.integers(0, n - 1), payload))
    changes = st.dictionaries(st.integers(0, n - 1), st.none() | payload)
    batches = draw(st.lists(changes, max_size=3))
    return n, stored, batches, draw(st.permutations(range(n)))


@given(shards(), st.booleans(), st.integers(0, 9))
def test_an_assembled_shard_has_what_changed_and_what_was_stored(
    tmp_path_factory, drawn, is_file, start
):
    n, stored, batches, order = drawn
    expected = dict(stored)
    for batch in batches:
        expected |= batch
    expected = {k: v for k, v in expected.items() if v is not None}
    with (tmp_path_factory.mktemp("s") / "s").open("w+b") as file:
        assembly = Assembly(n, [*map(payloads_of, batches)])
        assembly.keep(shard_of(stored, n, file if is_file else None))
        laid = assembly.laid_out(np.array(order), start)
        if laid is None:
            assert not expected
            return
        entries, pieces = laid
        data = bytes(start) + join_pieces(pieces).tobytes()
    assert len(data) == start + sum(map(len, expected.values()))
    at = start
    for entry in order:
        if entry not in expected:
            assert tuple(entries[entry]) == (EMPTY, EMPTY)
            continue
        assert tuple(entries[entry]) == (at, len(expected[entry]))
        assert data[at : at + len(expected[entry])] == expected[entry]
        at += len(expected[entry])


def payloads_of(batch: dict[int, bytes | None]) -> Payloads:
    columns = {
        entry: None if data is None else np.frombuffer(data, np.uint8)
        for entry, data in batch.items()
    }
    payloads = Payloads.of(columns)
    given_back = {
        entry: None if data is None else data.tobytes()
        for entry, data in payloads.items()
    }
    assert given_back == batch
    return payloads


def test_inner_chunks_in_the_order_of_the_shard_are_one_piece():
    rows = np.arange(40, dtype=np.uint8).reshape(10, 4)
    nobody = np.empty(0, np.int64)
    order = np.arange(10)[::-1].copy()
    whole = Payloads(order, EncodedArrays.of_rows(rows), nobody)
    laid = Assembly(10, [whole]).laid_out(order, 0)
    assert laid is not None
    assert [piece.tolist() for piece in laid[1]] == [[*range(40)]]


def test_a_damaged_entry_is_refused_unless_its_inner_chunk_is_replaced():
    stored = shard_of({0: b"abc", 2: b"de"}, 3)
    entries = stored.entries()
    entries[2] = 4, 9
    stored = StoredShard(stored.data, parse_index(entries, nbytes=5))
    with pytest.raises(CorruptShardError):
        Assembly(3, []).keep(stored)
    for replaced in (b"f", None):
        assembly = Assembly(3, [payloads_of({2: replaced})])
        assembly.keep(stored)
        laid = assembly.laid_out(np.arange(3), 0)
        assert laid is not None
        assert join_pieces(laid[1]).tobytes() == b"abc" + (replaced or b"")
