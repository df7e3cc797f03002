"""A read that nobody waits for any more ends at its next task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.errors import StoreError
from gpushard.options import Options
from gpushard.reading.read import execute
from gpushard.reading.results import host_job
from gpushard.report import Tally
from gpushard.selecting.selection import whole
from gpushard.stores.base import ByteRequest
from gpushard.stores.local.store import LocalStore
from gpushard.threads.stop_flag import StopFlag, call_for

N_SHARDS = 40
LOOPS, PLAIN = Options(compile_nbytes=0), Options(compile_nbytes=1 << 60)


class Stopping(LocalStore):
    """Sets a flag when it is first asked for payload, and counts what it is asked."""

    flag = StopFlag()
    n_asked = 0

    def read(self, requests: Sequence[ByteRequest]) -> Any:
        n_indexed = sum(request.is_indexed for request in requests)
        self.n_asked += n_indexed
        if n_indexed:
            self.flag.set()
        return super().read(requests)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    z = gpushard.create_array(
        tmp_path, shape=(N_SHARDS, 1024), shards=(1, 1024), chunks=(1, 256), dtype="i4"
    )
    z[...] = 1
    return tmp_path


def read(store: Any, options: Options, flag: StopFlag) -> np.ndarray:
    a = gpushard.open_array(store, options=options.but(threads=1), device="cpu")
    out = np.zeros(a.shape, a.dtype)
    job = host_job(a.source, [whole(a.shape)], [out], Tally())
    with pytest.raises(StoreError, match="nobody waits for the read"):
        call_for(flag, lambda: execute([job]))
    return out


@pytest.mark.parametrize("options", [LOOPS, PLAIN], ids=["loops", "plain"])
def test_nothing_is_read_once_nobody_waits(stored, options):
    flag = StopFlag()
    flag.set()
    assert not read(stored, options, flag).any()


def test_a_read_asks_its_store_for_nothing_more_once_nobody_waits(stored):
    store = Stopping(stored)
    read(store, PLAIN.but(batch_nbytes=4096), store.flag)
    assert 0 < store.n_asked < N_SHARDS
