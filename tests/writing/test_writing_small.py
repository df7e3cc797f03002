"""What a small write asks of Python and of the system is no more than it needs.

Counted, because times depend on the machine.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import gpushard
from call_counts import calls_of
from gpushard import Options
from gpushard.write_options import WriteOptions

OPTIONS = Options(threads=1, write=WriteOptions(durable=False))
VALUES = np.arange(1, 128 * 128 + 1, dtype="f4").reshape(128, 128)


def new(place, shards) -> gpushard.Array:
    """An array that has been written to before, and keeps what writes share."""
    a = gpushard.create_array(
        place,
        shape=VALUES.shape,
        dtype="f4",
        chunks=(16, 16),
        shards=shards,
        compressors=ZstdCodec(level=1),
        options=OPTIONS,
    )
    a[...] = VALUES
    a[0, 0] = VALUES[0, 0]
    return a


SHARDS = pytest.mark.parametrize("shards", [(64, 64), None])


@pytest.mark.parametrize(
    ("shards", "key", "most"),
    [
        ((64, 64), np.s_[5, 7], 1250),  # 1,100; 1,420 before projections were integers
        ((64, 64), np.s_[16:32, 16:32], 1220),  # 1,080 and 1,350
        (None, np.s_[5, 7], 800),  # 680 and 950
        (None, np.s_[16:32, 16:32], 710),  # 620 and 790
        (None, np.s_[40], 4150),  # of 8 files: 3,680 and 4,630
    ],
)
def test_a_small_write_calls_few_functions(tmp_path, shards, key, most):
    a = new(tmp_path / "a", shards)
    calls = calls_of(lambda: a.__setitem__(key, 0))
    assert len(calls) <= most
    expected = VALUES.copy()
    expected[key] = 0
    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], expected)


@SHARDS
def test_a_small_write_looks_at_no_directory_above_its_own(tmp_path, shards):
    a = new(tmp_path / "a", shards)
    found = Counter(calls_of(lambda: a.__setitem__((5, 7), 0)))
    assert not found["posix.lstat"]
    # The names of the lock, of the file and of a note; the directory's own path.
    assert found["posix.stat"] == 4


@SHARDS
def test_a_store_whose_path_has_a_link_is_written_to(tmp_path, shards):
    """The system tells another path of its directories than it was opened by."""
    new(tmp_path / "a", shards)
    (tmp_path / "link").symlink_to("a")
    gpushard.open_array(tmp_path / "link", options=OPTIONS)[5, 7] = 0
    assert zarr.open_array(tmp_path / "a", mode="r")[5, 7] == 0
