"""S3 against moto's server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushard.errors import ObjectChangedError
from gpushard.stores.base import ByteRequest
from gpushard.stores.remote_url import open_url
from range_server import RangeServer
from s3_server import make_bucket, s3_server
from stored_object import BODY, RANGES, read_one

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_options(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    options = make_bucket(s3_endpoint, monkeypatch)
    writer = open_url("s3://bucket/data.zarr", options).object_store
    for key, body in (("c/0", BODY), ("zarr.json", b"{}")):
        obstore.put(writer, key, body)
    return options


@pytest.mark.parametrize(("asked", "expected"), RANGES)
def test_s3_answers_every_kind_of_range(
    s3_options: dict[str, str], asked: tuple[int | None, ...], expected: bytes
) -> None:
    store = open_url("s3://bucket/data.zarr", s3_options)
    fetched = read_one(store, *asked)
    assert fetched.data.tobytes() == expected
    assert fetched.object_nbytes == len(BODY)
    assert fetched.version is not None


def test_s3_lists_and_reads_documents(s3_options: dict[str, str]) -> None:
    store = open_url("s3://bucket/data.zarr", s3_options)
    assert store.list_children("") == ["c", "zarr.json"]
    assert store.list_children("c") == store.list_children("/c/") == ["0"]
    assert store.list_children("none") == []
    assert store.get("zarr.json") == b"{}"
    assert store.get("none") is None
    assert store.url == "s3://bucket/data.zarr"


def test_s3_object_replaced_between_two_reads_is_noticed(
    s3_options: dict[str, str],
) -> None:
    store = open_url("s3://bucket/data.zarr", s3_options)
    version = read_one(store, -16).version
    assert read_one(store, 0, 4, version=version).data.tobytes() == BODY[:4]
    obstore.put(store.object_store, "c/0", b"x" * len(BODY))
    with pytest.raises(ObjectChangedError):
        read_one(store, 0, 4, version=version)


def test_objects_of_s3_without_ranges_are_read_whole_and_each_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "bucket/c").mkdir(parents=True)
    (tmp_path / "bucket/c/0").write_bytes(BODY)
    with RangeServer(tmp_path, answers_ranges=False) as server:
        keys = {"key": "k", "secret": "s", "region": "x"}
        store = open_url("s3://bucket", {"endpoint_url": server.url, **keys})
        assert read_one(store, 5, 9).data.tobytes() == BODY[5:9]
        server.requests.clear()
        answers = store.read([ByteRequest("c/0", i, i + 3) for i in range(10)])
        assert server.count("bucket/c/0") == 1
    assert [a and a.data.tobytes() for a in answers] == [
        BODY[i : i + 3] for i in range(10)
    ]


def test_s3_takes_its_settings_from_the_environment(
    s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert open_url("s3://bucket/data.zarr", {}).get("zarr.json") == b"{}"


def test_s3_is_read_anonymously_when_asked(s3_options: dict[str, str]) -> None:
    options = {"endpoint_url": s3_options["endpoint_url"], "anon": True}
    store = open_url("s3://bucket/data.zarr", options)
    assert store.get("none") is None
