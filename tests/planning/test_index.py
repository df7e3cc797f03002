"""Shard index entries -> byte ranges, against Python's unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard.errors import CorruptShardError
from gpushard.planning.index import CORRUPT, MISSING, PRESENT, ShardIndex, parse_index

EMPTY = 2**64 - 1
NBYTES = 1000


def parsed(*entries, base=0, nbytes=NBYTES) -> ShardIndex:
    return parse_index(np.array(entries, np.uint64), base=base, nbytes=nbytes)


def state_of(offset, size, base=0, nbytes=NBYTES):
    """What the specification says of an entry, in integers that cannot overflow."""
    if offset == size == EMPTY:
        return MISSING
    end = 2**63 - 1 - base if nbytes is None else nbytes
    return PRESENT if offset + size <= end else CORRUPT


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        ((0, 1), PRESENT),
        ((0, NBYTES), PRESENT),
        ((NBYTES - 1, 1), PRESENT),
        ((NBYTES, 0), PRESENT),
        ((7, 0), PRESENT),
        ((EMPTY, EMPTY), MISSING),
        ((EMPTY, 0), CORRUPT),
        ((EMPTY, 1), CORRUPT),
        ((0, EMPTY), CORRUPT),
        ((1, EMPTY), CORRUPT),
        ((EMPTY - 1, EMPTY - 1), CORRUPT),
        ((NBYTES, 1), CORRUPT),
        ((NBYTES + 1, 0), CORRUPT),
        ((0, NBYTES + 1), CORRUPT),
        ((NBYTES - 1, 2), CORRUPT),
        # The sum wraps around to something small.
        ((2**64 - 10, 20), CORRUPT),
        ((20, 2**64 - 10), CORRUPT),
        ((2**63, 2**63), CORRUPT),
        ((2**63, 0), CORRUPT),
        ((0, 2**62), CORRUPT),
    ],
)
def test_an_entry_is_present_missing_or_corrupt(entry, state):
    assert parsed(entry).state.tolist() == [state]
    assert state_of(*entry) == state


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        ((2**62, 2**62 - 1), PRESENT),
        ((2**62, 2**62), CORRUPT),
        ((2**63 - 1, 0), PRESENT),
        ((2**63, 0), CORRUPT),
        ((0, 2**63 - 1), PRESENT),
        ((0, 2**63), CORRUPT),
        ((2**64 - 10, 20), CORRUPT),
        ((EMPTY, EMPTY), MISSING),
        ((EMPTY, 5), CORRUPT),
    ],
)
def test_in_a_shard_of_unknown_size_a_range_must_fit_an_int64(entry, state):
    assert parsed(entry, nbytes=None).state.tolist() == [state]


def test_entries_of_a_nested_shard_are_moved_to_where_it_starts():
    index = parsed((0, 10), (90, 10), (EMPTY, EMPTY), (91, 10), base=500, nbytes=100)
    assert index.state.tolist() == [PRESENT, PRESENT, MISSING, CORRUPT]
    assert index.offset[:2].tolist() == [500, 590]
    assert index.nbytes[:2].tolist() == [10, 10]


def test_a_moved_entry_never_leaves_an_int64():
    base = 2**40
    index = parsed((2**63 - base, 1), (2**63 - 2 - base, 1), base=base, nbytes=None)
    assert index.state.tolist() == [CORRUPT, PRESENT]
    assert index.offset[1] == 2**63 - 2


fields = st.one_of(
    st.integers(0, 40),
    st.integers(0, EMPTY),
    st.sampled_from([EMPTY, EMPTY - 1, 2**63, 2**63 - 1, 2**62, 2**32]),
)


@given(
    st.lists(st.tuples(fields, fields), min_size=1, max_size=20),
    st.integers(0, 2**62),
    st.none() | st.integers(0, 50) | st.integers(0, 2**62),
)
def test_states_and_ranges_are_those_of_unbounded_integers(entries, base, nbytes):
    index = parsed(*entries, base=base, nbytes=nbytes)
    states = [state_of(*entry, base, nbytes) for entry in entries]
    assert index.state.tolist() == states
    assert index.offset.dtype == index.nbytes.dtype == np.int64
    for i, (offset, size) in enumerate(entries):
        if states[i] == PRESENT:
            assert (int(index.offset[i]), int(index.nbytes[i])) == (base + offset, size)
        elif states[i] == CORRUPT:
            with pytest.raises(
                CorruptShardError, match=f"offset {offset}, nbytes {size};"
            ):
                index.refuse_corrupt(i)


@pytest.mark.parametrize(
    ("entry", "nbytes", "expected"),
    [
        ((EMPTY, 3), NBYTES, "both fields or neither"),
        ((3, EMPTY), None, "both fields or neither"),
        ((5, 2**62), NBYTES, "within the shard's 1000 bytes"),
        ((2**63, 1), None, r"below 2\*\*63"),
    ],
)
def test_a_corrupt_entry_is_refused_with_what_was_expected_of_it(
    entry, nbytes, expected
):
    index = parsed((0, 1), entry, nbytes=nbytes)
    with pytest.raises(CorruptShardError, match=expected) as caught:
        index.refuse_corrupt(1)
    assert "entry 1 of the shard index" in str(caught.value)
    assert caught.value.got == f"offset {entry[0]}, nbytes {entry[1]}"


def test_a_corrupt_entry_of_a_nested_shard_is_measured_by_that_shard():
    index = parsed((500, 10), base=1000, nbytes=100)
    with pytest.raises(CorruptShardError) as caught:
        index.refuse_corrupt(0)
    assert caught.value.expected == "a byte range within the shard's 100 bytes"
    assert caught.value.got == "offset 500, nbytes 10"


def test_entries_may_be_any_view_and_are_not_written_to():
    entries = np.array([[0, 5], [EMPTY, EMPTY], [5, 5]], np.uint64)
    stored = np.zeros((6, 4), np.uint64)[::2, ::2]
    stored[...] = entries
    stored.setflags(write=False)
    index = parse_index(stored, base=3, nbytes=100)
    assert index.offset[[0, 2]].tolist() == [3, 8]
    np.testing.assert_array_equal(stored, entries)


def test_the_memory_held_is_that_of_the_columns():
    assert parsed((0, 1), (1, 1)).held_nbytes == 2 * (8 + 8 + 1)
