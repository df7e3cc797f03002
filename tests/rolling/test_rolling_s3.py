"""Rolling arrays in a bucket: tags for life-cycle rules, conditional puts, readers."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gpushard
from gpushard.rolling import RollingArray
from gpushard.stores.remote_url import open_url
from rolling_arrays import PLAIN, WIDTH, rolling, steps
from s3_server import make_bucket, s3_server

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network

TAGS = {"type": "temp_chunk"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(endpoint: str, request, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where a test's own array goes, and how."""
    options = make_bucket(endpoint, monkeypatch)
    return {"store": f"s3://bucket/{request.node.name}", "storage_options": options}


def made(bucket: dict[str, Any], n: int, **arguments: Any) -> RollingArray:
    a = RollingArray.create(**bucket, **PLAIN | arguments)
    return a.append(steps(0, n)) if n else a


def objects_of(bucket: dict[str, Any]) -> Any:
    return open_url(bucket["store"], bucket["storage_options"]).object_store


def keys_of(bucket: dict[str, Any]) -> list[str]:
    store = objects_of(bucket)
    found = (item["path"] for batch in obstore.list(store) for item in batch)
    return sorted(found)


def tags_on(endpoint: str, bucket: dict[str, Any], key: str) -> dict[str, str]:
    """What the server says of an object's tags."""
    place = bucket["store"].removeprefix("s3://bucket/")
    # The server answers whoever says that he is somebody.
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/x/s3/x"}
    url = f"{endpoint}/bucket/{place}/{key}?tagging"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        found = re.findall(
            "<Key>(.*?)</Key><Value>(.*?)</Value>", answer.read().decode()
        )
    return dict(found)


def test_shards_are_tagged_and_nothing_else_is(endpoint, bucket):
    a = made(bucket, 4, tags=TAGS)
    RollingArray.open(**bucket).roll(steps(4, 6), delete=False)
    keys = keys_of(bucket)
    assert keys == ["c/0/0", "c/1/0", "c/2/0", "zarr.json"]
    tags = {key: tags_on(endpoint, bucket, key) for key in keys}
    assert tags == {key: {} if key == "zarr.json" else TAGS for key in keys}
    assert np.array_equal(a.refresh()[...], steps(2, 6))


def test_a_life_cycle_rule_may_delete_what_has_rolled_off(endpoint, bucket):
    a = made(bucket, 4, tags=TAGS)
    view = RollingArray.open(**bucket).view()
    a.drop(2, delete=False)
    assert np.array_equal(view[...], steps(0, 4))
    assert expire(endpoint, bucket, {"c/0/0"}) == ["c/0/0"]
    assert np.array_equal(a[...], steps(2, 4))
    assert np.array_equal(RollingArray.open(**bucket)[...], steps(2, 4))
    with pytest.raises(gpushard.WindowMovedError):
        view[...]


def expire(endpoint: str, bucket: dict[str, Any], old: set[str]) -> list[str]:
    """Delete old objects that have the tag, as the bucket's rule would."""
    store = objects_of(bucket)
    gone = [
        key
        for key in keys_of(bucket)
        if key in old and tags_on(endpoint, bucket, key) == TAGS
    ]
    obstore.delete(store, gone)
    return gone


def test_a_shard_that_expires_in_the_window_is_fill(bucket):
    a = made(bucket, 4)
    obstore.delete(objects_of(bucket), "c/0/0")
    assert np.all(a[:2] == a.fill_value)
    assert np.array_equal(a[2:], steps(2, 4))


def test_a_reader_of_a_bucket_follows(bucket):
    a = made(bucket, 6)
    reader = RollingArray.open(**bucket)
    assert np.array_equal(reader[...], steps(0, 6))
    a.roll(steps(6, 8)).prepend(steps(0, 2)).drop(4)
    assert keys_of(bucket) == ["c/2/0", "c/3/0", "zarr.json"]
    assert np.array_equal(reader[...], steps(4, 8))


def test_two_appends_to_one_place_are_told_apart(bucket, monkeypatch):
    made(bucket, 0)
    first, second = RollingArray.open(**bucket), RollingArray.open(**bucket)
    writing = gpushard.rolling.steps.Steps.write

    def overtaken(self, window, values, **named):
        monkeypatch.undo()
        with pytest.raises(gpushard.StoreError, match="at="):
            second.append(steps(2, 4))
        writing(self, window, values, **named)

    monkeypatch.setattr("gpushard.rolling.steps.Steps.write", overtaken)
    first.append(steps(0, 2))
    second.append(steps(2, 4))
    assert np.array_equal(first.refresh()[...], steps(0, 4))


def test_appends_that_know_their_place_never_wait(bucket):
    a = made(bucket, 0)
    b = RollingArray.open(**bucket)
    b.append(steps(2, 4), at=2)
    assert np.all(b[:2] == b.fill_value)
    a.append(steps(0, 2), at=0)
    assert np.array_equal(b[...], steps(0, 4))
    assert b.shape == a.shape == (4, WIDTH)


def test_a_window_is_moved_by_conditional_puts(bucket, monkeypatch):
    a = made(bucket, 4)
    b = RollingArray.open(**bucket)
    moved = gpushard.rolling.steps.moved_document

    def overtaken(*arguments):
        monkeypatch.undo()
        b.append(steps(4, 6))
        return moved(*arguments)

    monkeypatch.setattr("gpushard.rolling.steps.moved_document", overtaken)
    a.drop(2)
    assert np.array_equal(a[...], steps(2, 6))


def test_files_and_buckets_hold_the_same_objects(bucket, tmp_path):
    a = made(bucket, 4)
    a.roll(steps(4, 6)).prepend(steps(-2, 2))
    rolling(tmp_path / "a", 0, 4).roll(steps(4, 6)).prepend(steps(-2, 2))
    assert "c/-1/0" in keys_of(bucket)
    assert np.array_equal(RollingArray.open(**bucket)[...], steps(-2, 6))
    files = tmp_path.rglob("*")
    local = {p.relative_to(tmp_path / "a").as_posix() for p in files if p.is_file()}
    assert local == set(keys_of(bucket))
    assert a.sweep() == 0


def test_writers_beside_one_another_lose_nothing_in_a_bucket(bucket):
    made(bucket, 0)
    n = 4

    def write(me: int) -> None:
        a = RollingArray.open(**bucket)
        for k in range(n):
            at = 2 * (4 * k + me)
            a.append(steps(at, at + 2), at=at)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert np.array_equal(RollingArray.open(**bucket)[...], steps(0, 8 * n))
