"""What other systems than a usual Linux lack or refuse, and what is done without it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from gpushard.cli.npy import NpyFile


@pytest.mark.parametrize("refusal", [None, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_room_is_made_on_the_disk_where_the_system_reserves_none(
    refusal, tmp_path, monkeypatch
):
    """macOS has no call for it, and some file systems and sandboxes refuse it."""

    def refuse(*_):
        raise OSError(refusal, "refused")

    if refusal is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    values = np.arange(400_000, dtype="f8").reshape(800, 500)
    with NpyFile(tmp_path / "x.npy", values.shape, values.dtype) as file:
        part = next(tmp_path.glob("*.part")).stat()
        assert part.st_blocks * 512 >= part.st_size > values.nbytes
        file.array[...] = values
        file.keep()
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)
