"""Writes to parts of shards in Google's storage, whose conditions are generations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import gpushard
from gcs_server import gcs_server
from gpushard.rolling import RollingArray

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network


@pytest.fixture
def bucket() -> Iterator[Any]:
    with gcs_server() as config:
        yield obstore.store.GCSStore(
            "bucket", config=config, client_options={"allow_http": True}
        )


@pytest.fixture
def array(bucket):
    """An array of one shard, all 1."""
    a = gpushard.create_array(
        bucket, shape=(8, 8), dtype="i4", chunks=(4, 4), shards=(8, 8), device="cpu"
    )
    a[...] = 1
    return a


def test_a_part_of_a_shard_is_written(array, bucket):
    array[0, 0] = 2
    want = np.ones((8, 8), "i4")
    want[0, 0] = 2
    got = gpushard.open_array(bucket, device="cpu")[...]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("before", ["head", "put"])
@pytest.mark.parametrize("value", [3, 0], ids=["replaced", "deleted"])
def test_a_write_in_between_is_not_lost(before, value, array, bucket, monkeypatch):
    other, real = gpushard.open_array(bucket, device="cpu"), getattr(obstore, before)
    turns = [lambda: other.__setitem__(..., value)]

    def late(*given, **named):
        if turns:
            turns.pop()()
        return real(*given, **named)

    monkeypatch.setattr(obstore, before, late)
    array[7, 7] = 2
    assert (array[0, 0], array[7, 7]) == (value, 2)


def test_a_window_moves(bucket):
    a = RollingArray.create(
        bucket, "r", shape=(0,), dtype="i4", chunks=2, shards=2, device="cpu"
    )
    a.append([1, 2]).append([3, 4]).roll([5, 6])
    assert a.domain == (range(2, 6),)
    assert a[...].tolist() == [3, 4, 5, 6]


def test_a_put_whose_answer_is_lost_is_known_to_be_done():
    quick = {"backoff": {"init_backoff": timedelta(milliseconds=1)}}
    with gcs_server("json") as config:
        bucket = obstore.store.GCSStore(
            "bucket",
            config=config,
            client_options={"allow_http": True},
            retry_config=quick,
        )
        a = gpushard.create_array(bucket, shape=(4,), dtype="i4", chunks=(2,))
        assert a[...].tolist() == [0] * 4
