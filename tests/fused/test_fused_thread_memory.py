"""Memory that threads keep, and the addresses that the compiled loops are given."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest
import zarr

from gpushard.codecs.contexts import ThreadContexts
from gpushard.fused import choice
from gpushard.fused.addresses import address_of
from gpushard.fused.code import kept_code
from gpushard.fused.columns import RAW
from gpushard.fused.libraries import Library
from gpushard.fused.thread_memory import WINDOW_NBYTES, ThreadMemory
from gpushard.options import MIB

ROWS = np.zeros((4, 6), "f4")
READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False
ARRAYS = {
    "contiguous": ROWS,
    "later rows": ROWS[2:],
    "gaps": ROWS[1:, 2:4],
    "reversed": ROWS[::-1],
    "transposed": ROWS.T[1:],
    "read-only": READ_ONLY,
    "times": np.zeros(3, "M8[ns]"),
    "durations": np.zeros((2, 2), "m8[s]"),
    "fields": np.zeros(3, [("a", "i1"), ("b", "M8[D]")]),
    "big-endian": np.zeros(3, ">i8"),
    "complex": np.zeros(3, "c16"),
    "half": np.zeros(3, "f2"),
    "bool": np.zeros(3, "?"),
    "bytes": np.zeros(3, "S3"),
    "void": np.zeros(3, "V5"),
    "unaligned": np.zeros(9, "u1")[1:].view("i8"),
    "one element": np.zeros((), "i4"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_address_is_that_of_the_first_element(kind):
    array = ARRAYS[kind]
    assert address_of(array) == array.__array_interface__["data"][0]


def test_where_there_is_no_element_the_address_is_zero():
    assert address_of(None) == 0
    assert address_of(np.zeros((0, 3))) == 0


@pytest.mark.parametrize(
    ("keeps", "most"), [(True, 4 * MIB), (False, WINDOW_NBYTES)], ids=["kept", "freed"]
)
def test_a_thread_keeps_memory_up_to_a_size_that_depends_on_who_asks(keeps, most):
    memory = ThreadMemory()
    assert memory.n_made == 0
    large = memory.buffer("window", most + 1, keeps=keeps)
    assert large.nbytes > most
    assert not any(kept is large for kept in memory.held)
    fitting = memory.buffer("window", most, keeps=keeps)
    assert fitting.address % 64 == 0
    for nbytes in (most, 1):
        assert memory.buffer("window", fitting.nbytes, keeps=keeps) is fitting
        assert memory.buffer("window", nbytes, keeps=keeps) is fitting
    assert any(kept is fitting for kept in memory.held)
    assert memory.n_made == 2


def test_a_context_that_a_read_in_between_has_made_stays():
    """Its address is packed for later reads, which would use it after it was freed."""
    memory, owners = ThreadMemory(), []

    def make_context():
        owners.append(object())
        mine = len(owners)
        if mine == 1:  # a signal arrives, whose handler reads
            assert memory.context(library) == 2
        return mine, owners[-1]

    library = Library("interrupted", RAW, make_context=make_context)
    assert memory.context(library) == memory.context(library) == 2


def test_what_is_held_outlives_what_the_thread_keeps():
    """As when the interpreter ends, and takes it from a daemon thread in a call."""
    owner = np.zeros(1)  # of a context
    library = Library("held", RAW, make_context=lambda owner=owner: (1, owner))
    memory = ThreadMemory()
    memory.context(library)
    buffer = memory.buffer("window", 100)
    alive = [ref(memory.work), ref(buffer.memory), ref(owner)]
    held = memory.held
    del memory, buffer, owner, library
    assert all(one() is not None for one in alive)
    del held
    assert [one() for one in alive] == [None] * 3


def test_a_context_that_is_used_outlives_what_the_thread_keeps():
    freed: list[int] = []
    contexts = ThreadContexts(lambda _: 7, "free")
    own = contexts.own(SimpleNamespace(free=freed.append))
    assert own.address == 7
    del contexts
    assert not freed
    del own
    assert freed == [7]


ENDLESS = """
import sys, threading, time, gpushard
a = gpushard.open_array(sys.argv[1], options=gpushard.Options(compile_nbytes=0))
def read():
    while True:
        a[...]
a[...]
from gpushard.fused import choice
assert choice.are_loaded()
threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
"""


def test_the_interpreter_may_end_while_a_daemon_thread_reads(tmp_path):
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    choice._load()
    if kept_code.find() is None:
        pytest.skip("code of the loops cannot be kept here")
    a = zarr.create_array(
        tmp_path / "a", shape=(100, 80), chunks=(10, 10), shards=(50, 40), dtype="f4"
    )
    a[...] = np.arange(8000).reshape(100, 80)
    # Its `malloc` sees at once what was written behind freed memory.
    command = [sys.executable, "-X", "dev", "-c", ENDLESS, tmp_path / "a"]
    for _ in range(4):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
