"""Elements that are copied, and compared with those that they were copied from."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.converting import copying
from gpushard.converting.copying import same_bits
from gpushard.stores.local.files import FileWriter


def test_no_byte_escapes_a_comparison(monkeypatch):
    monkeypatch.setattr(copying, "_COMPARED_NBYTES", 8)
    one = np.arange(6, dtype="i4")
    assert same_bits(one, one.copy())
    for at in range(one.nbytes):
        other = one.copy()
        other.view(np.uint8)[at] ^= 1
        assert not same_bits(one, other)


def test_a_shard_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "src", shape=(9,), chunks=(3,), dtype="u1")[...] = 1
    put = FileWriter.put

    def refuse(writer, key, pieces):
        if key == "c/1":
            raise gpushard.StoreError("no room")
        return put(writer, key, pieces)

    monkeypatch.setattr(FileWriter, "put", refuse)
    with pytest.raises(gpushard.StoreError, match="no room") as caught:
        gpushard.convert(tmp_path / "src", tmp_path / "dst", shards=3, chunks=3)
    assert caught.value.shard_key == "c/1"
