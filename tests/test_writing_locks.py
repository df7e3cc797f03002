"""A lock that a write has taken ends with the write, whatever happens at its end."""

from __future__ import annotations

import errno
import fcntl
import os

import numpy as np
import pytest

import gpushard

FAILURES = [
    OSError(errno.EROFS, "Read-only file system"),
    PermissionError(errno.EACCES, "Permission denied"),
    KeyboardInterrupt(),
]


@pytest.fixture
def array(tmp_path, monkeypatch) -> gpushard.Array:
    """Array of one shard; writes to it do not wait for a lock, but fail."""
    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda fd, op: lock(fd, op | fcntl.LOCK_NB))
    return gpushard.create_array(
        tmp_path / "a", shape=(16,), dtype="u4", chunks=(4,), shards=(16,)
    )


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: type(f).__name__)
def test_a_lock_whose_file_cannot_be_removed_does_not_keep_the_next_writer_waiting(
    failure, array, monkeypatch
):
    """As when the kernel makes a failing disk read-only in the middle of a write."""
    unlink = os.unlink

    def refuse(name, **place):
        if name.endswith(".lock"):
            raise failure
        unlink(name, **place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises((gpushard.StoreError, KeyboardInterrupt)):
            array[...] = 1
    array[...] = np.arange(16)
    assert array[...].tolist() == list(range(16))
