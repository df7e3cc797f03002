"""Memory of large results is written again once nobody has them, and never before."""

from __future__ import annotations

import gc
import mmap
import os
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard.memory import lent
from gpushard.memory.lent import Lender
from gpushard.options import KIB, MIB
from gpushard.placing import outputs
from gpushard.placing.outputs import usable_output
from memory_probe import status_nbytes

needs_free_pages = pytest.mark.skipif(
    not hasattr(mmap, "MADV_FREE") or not os.access("/proc/self/smaps", os.R_OK),
    reason="only Linux takes pages back at its leisure",
)
FLOAT = np.dtype("float32")


def place(array: Any) -> int:
    return array.__array_interface__["data"][0]


def taken(lender: Lender, nbytes: int) -> Any:
    memory = lender.take(nbytes)
    assert memory is not None
    assert len(memory) >= nbytes
    return memory


@needs_free_pages
def test_memory_that_came_back_is_lent_again():
    lender = Lender()
    memory = taken(lender, 3 * MIB)
    first = place(memory)
    del memory
    assert place(taken(lender, 3 * MIB)) == first


@needs_free_pages
def test_memory_is_not_lent_again_while_any_view_of_it_is_there():
    lender = Lender()
    memory = taken(lender, 2 * MIB)
    first, view = place(memory), memory[5:9].view("int32")
    del memory
    assert place(taken(lender, 2 * MIB)) != first
    del view
    assert first in [place(taken(lender, 2 * MIB)) for _ in "ab"]


@needs_free_pages
@pytest.mark.parametrize(
    ("nbytes", "is_same"), [(8, True), (4, True), (2, False), (9, False)]
)
def test_memory_is_lent_again_for_as_much_or_half_of_it(nbytes, is_same):
    lender = Lender()
    memory = taken(lender, 8 * MIB)
    first = place(memory)
    del memory
    assert (place(taken(lender, nbytes * MIB)) == first) is is_same


@needs_free_pages
def test_memory_that_one_result_does_not_fit_is_kept_for_the_next():
    lender = Lender()
    memory = taken(lender, 8 * MIB)
    first = place(memory)
    del memory
    small = taken(lender, 2 * MIB)
    assert place(taken(lender, 8 * MIB)) == first
    assert place(small) != first


@needs_free_pages
def test_of_much_that_comes_back_no_more_than_two_pieces_are_kept():
    lender = Lender()
    before = status_nbytes("VmSize")
    held = [taken(lender, 64 * MIB) for _ in range(5)]
    assert status_nbytes("VmSize") >= before + 5 * 64 * MIB
    held.clear()
    assert status_nbytes("VmSize") <= before + 2 * 64 * MIB + 4 * MIB


@needs_free_pages
def test_what_is_kept_the_system_may_take():
    lender = Lender()
    memory = taken(lender, 4 * MIB)
    memory[:] = 1
    at = place(memory)
    assert lazily_freed(at) == 0
    del memory
    assert lazily_freed(at) >= 4 * MIB - UNTOLD


class Watched(deque[Any]):
    """Tells how much of what comes back the system could take at that moment."""

    freed: int | None = None

    def append(self, loan: Any) -> None:
        memory = np.frombuffer(loan.pages, np.uint8)
        self.freed = lazily_freed(place(memory))
        super().append(loan)


@needs_free_pages
def test_pages_are_the_systems_before_they_can_be_lent_again():
    lender = Lender()
    back = lender._back = Watched(maxlen=2)
    memory = taken(lender, 4 * MIB)
    memory[:] = 1
    del memory
    assert 4 * MIB - UNTOLD <= back.freed <= 4 * MIB


# Linux tells of freed pages once a CPU has a batch of them (31; `struct folio_batch`).
UNTOLD = 31 * 4 * KIB


def lazily_freed(address: int) -> int:
    """Bytes of the mapping at an address that the system takes when it likes."""
    is_it = False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            head, *rest = line.split()
            if not head.endswith(":"):
                low, high = (int(word, 16) for word in head.split("-"))
                is_it = low <= address < high
            elif is_it and head == "LazyFree:":
                return int(rest[0]) * KIB
    return 0


@needs_free_pages
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12),
)
def test_no_two_results_ever_have_the_same_memory(steps):
    lender = Lender()
    held: dict[int, Any] = {}
    for n, (which, nbytes) in enumerate(steps):
        if which in held:
            stamp, memory = held.pop(which)
            assert (memory[[0, -1]] == stamp).all()
            del memory
        else:
            memory = taken(lender, nbytes * 64 * KIB)
            memory[[0, -1]] = n
            held[which] = n, memory
        for stamp, memory in held.values():
            assert (memory[[0, -1]] == stamp).all()


@pytest.mark.parametrize("missing", ["_FREE", "_HUGE"])
def test_where_the_system_takes_no_pages_back_numpy_has_the_memory(
    monkeypatch, missing
):
    monkeypatch.setattr(lent, missing, 0)
    assert Lender().take(MIB) is None
    out = usable_output(None, (16 * MIB // 4,), FLOAT)
    assert place(out) % 64 == 0
    assert out.base is not None
    assert out.base.flags.owndata


class Locked(mmap.mmap):
    """Pages that the system may not take, as `mlockall` makes them."""

    def madvise(self, option: int, *_: int) -> None:
        raise OSError(22, "Invalid argument")


@needs_free_pages
def test_where_all_pages_are_locked_numpy_has_the_memory(monkeypatch):
    monkeypatch.setattr(lent.mmap, "mmap", Locked)
    assert Lender().take(MIB) is None


@needs_free_pages
def test_where_there_is_no_memory_it_is_said(monkeypatch):
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(lent.mmap, "mmap", refused)
    with pytest.raises(MemoryError, match="no room for 2097152 bytes"):
        Lender().take(2 * MIB)


@needs_free_pages
def test_larger_results_than_are_kept_are_numpys():
    assert Lender(most_nbytes=MIB).take(MIB + 1) is None
    assert Lender(most_nbytes=MIB).take(MIB) is not None


@needs_free_pages
def test_an_array_read_again_is_read_into_the_memory_of_the_result_before(
    tmp_path, monkeypatch
):
    values = np.arange(1024, dtype="int32").reshape(32, 32)
    a = gpushard.create_array(
        tmp_path, shape=(32, 32), shards=(32, 32), chunks=(8, 8), dtype="int32"
    )
    a[...] = values
    monkeypatch.setattr(outputs, "LARGE_NBYTES", values.nbytes)
    result = a[...]
    at, row = place(result), result[3]
    np.testing.assert_array_equal(result, values)
    result[...] = -1
    del result
    gc.collect()
    other = a[...]
    assert place(other) != at
    assert (row == -1).all()
    del row
    np.testing.assert_array_equal(a[...], values)
    assert at in [place(a[...]) for _ in "ab"]
    np.testing.assert_array_equal(other, values)
