"""Puts that happen while their answers are lost: told as done, and done once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.rolling import RollingArray
from losing_proxy import LosingProxy, losing_proxy
from rolling_arrays import PLAIN, steps
from s3_server import make_bucket, s3_server

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network

QUICK = timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def proxy() -> Iterator[LosingProxy]:
    with s3_server() as endpoint, losing_proxy(endpoint) as running:
        yield running


either = pytest.mark.parametrize("bucket", [504, 0], indirect=True)
cut = pytest.mark.parametrize("bucket", [0], indirect=True)


@pytest.fixture(params=[504])
def bucket(proxy, request, monkeypatch) -> dict[str, Any]:
    """Where a test's own array goes, by a way on which an answer may be lost."""
    options: dict[str, Any] = make_bucket(proxy.endpoint, monkeypatch)
    options["endpoint_url"] = proxy.url
    options["retry_config"] = {"backoff": {"init_backoff": QUICK, "max_backoff": QUICK}}
    proxy.status, proxy.loses, proxy.method = request.param, 0, "PUT"
    return {"store": f"s3://bucket/{request.node.name}", "storage_options": options}


@either
def test_an_array_that_was_made_is_not_said_to_be_in_its_own_way(bucket, proxy):
    proxy.loses, proxy.ending = 1, "zarr.json"
    a = gpushard.create_array(**bucket, shape=(4,), dtype="i4", chunks=(2,))
    assert proxy.loses == 0
    a[...] = 1
    with pytest.raises(gpushard.OptionError, match="already"):
        gpushard.create_array(**bucket, shape=(4,), dtype="i4", chunks=(2,))


def test_a_shard_that_was_claimed_is_not_in_its_own_way(bucket, proxy):
    a = RollingArray.create(**bucket, **PLAIN)
    proxy.loses, proxy.ending = 1, "c/0/0"
    assert np.array_equal(a.append(steps(0, 4))[...], steps(0, 4))
    assert proxy.loses == 0


def test_a_window_is_prepended_to_once(bucket, proxy):
    a = RollingArray.create(**bucket, **PLAIN).append(steps(0, 4))
    proxy.loses, proxy.ending = 1, "zarr.json"
    assert np.array_equal(a.prepend(steps(-2, 0))[...], steps(-2, 4))
    assert proxy.loses == 0


@either
def test_a_write_that_is_told_to_have_failed_each_time_is_known_to_be_there(
    bucket, proxy
):
    bucket["storage_options"]["retry_config"]["max_retries"] = 1
    a = gpushard.create_array(
        **bucket, shape=(4,), dtype="i4", chunks=(2,), shards=(4,)
    )
    proxy.loses, proxy.ending = 2, "c/0"
    a[1:3] = 5
    assert a[...].tolist() == [0, 5, 5, 0]
    (shard,) = {path for method, path in proxy.seen[-4:]}
    puts = [request for request in proxy.seen if request == ("PUT", shard)]
    assert len(puts) == 2, "by obstore, and not again"


@cut
def test_a_window_is_dropped_from_once(bucket, proxy):
    a = RollingArray.create(**bucket, **PLAIN).append(steps(0, 8))
    proxy.loses, proxy.ending = 1, "zarr.json"
    a.drop(2)
    assert proxy.loses == 0
    assert a.domain[0] == range(2, 8)
    assert np.array_equal(RollingArray.open(**bucket)[...], steps(2, 8))
    assert a.sweep() == 0, "what the window has left is deleted"
