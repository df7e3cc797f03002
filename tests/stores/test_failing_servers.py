"""Servers that fail, lie or keep silent: right elements, or an error within a time.

On every way that a read takes: plain, small, compiled, and to an emulated device.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpushard
from damaged_arrays import WAYS, on_host
from damaged_arrays import opened as opened_by
from gpushard.options import MIB
from gpushard.stores import patience
from gpushard.stores.answers import RefusalError
from gpushard.stores.base import ByteRequest
from gpushard.stores.patience import WaitLimits
from gpushard.stores.remote_url import open_url
from range_server import RangeServer
from small_array import VALUES, write_values
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.network

FEW = np.s_[1:3, 3:9]
"""One inner chunk of four in a shard: its index and its bytes are requested apart."""
# As long as nobody has to wait; 15 is the default that the documentation tells of.
PATIENCE_S = float(os.environ.get("GPUSHARD_PATIENCE_S", "1.5"))
N_READS = int(os.environ.get("GPUSHARD_READS", "700"))
"""Of the small way, beside a writer; a quarter as many of other ways."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_values(tmp_path / "a")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _compiled_loops(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the loops loaded: compiling them takes longer than any server may."""
    place = write_values(tmp_path_factory.mktemp("loops") / "a")
    assert_same_bits(opened_by(place, "compiled")[...], VALUES)


def opened(server: RangeServer, way: str = "small", **options: Any) -> gpushard.Array:
    return opened_by(server.url, way, **options)


def assert_reads(a: gpushard.Array, *keys: Any) -> None:
    for key in keys or (FEW, ...):
        assert_same_bits(on_host(a[key]), VALUES[key])


by_every_way = pytest.mark.parametrize("way", WAYS)


SURVIVED: dict[str, dict[str, Any]] = {
    **{f"status {s} twice": {"fail_first": 2, "failure": s} for s in (429, 500)},
    **{f"status {s} twice": {"fail_first": 2, "failure": s} for s in (502, 503, 504)},
    "connection reset twice": {"fail_first": 2, "failure": 0},
    "body cut once": {"cut_first": 1},
    "ranges ignored": {"answers_ranges": False},
    "suffix refused with 416": {"answers_suffixes": False, "suffix_status": 416},
    "suffix refused with 501": {"answers_suffixes": False, "suffix_status": 501},
    "suffix answered with the whole body": {
        "answers_suffixes": False,
        "suffix_status": 200,
    },
    "no HEAD": {"answers_head": False},
    "no Content-Range": {"tells_ranges": "nothing"},
    "no total in Content-Range": {"tells_ranges": "total"},
    "chunked": {"transfer": "chunked"},
    "redirect": {"redirects": True},
    "no ETag": {"etags": None},
    "weak ETag": {"etags": "weak"},
    "If-Match ignored": {"checks_if_match": False},
}


@by_every_way
@pytest.mark.parametrize("fault", SURVIVED)
def test_a_fault_that_can_be_got_round_does_not_show(server, fault, way):
    a = opened(server, way)
    for name, value in SURVIVED[fault].items():
        setattr(server, name, value)
    assert_reads(a)
    if "twice" in fault:  # also when the array is opened
        server.fail_first = 2
        assert_reads(opened(server, way))


REFUSED: dict[str, dict[str, Any]] = {
    "206 shorter": {"stretch": -3},
    "206 longer": {"stretch": 3},
    "206 longer than it tells": {"padding": 3},
    "206 shifted": {"shift_ranges": 1},
    "wrong bytes": {"garbles": True},
    "every body cut": {"cut_bodies": True, "etags": None},
    "encoded body": {"transfer": "gzip"},
    "several parts": {"content_type": "Multipart/ByteRanges; boundary=x"},
    "several parts, in chunks": {
        "content_type": "Multipart/ByteRanges; boundary=x",
        "transfer": "chunked",
    },
    "always 500": {"fail_first": 10**6, "failure": 500},
    "always 503": {"fail_first": 10**6, "failure": 503},
    "connection always reset": {"fail_first": 10**6, "failure": 0},
    "forbidden": {"statuses": {"c/0/0": 403}},
    "a byte now and then": {"trickles": "body"},
    "a byte now and then, in a body of no told size": {
        "trickles": "body",
        "transfer": "chunked",
    },
    "a head that never ends": {"trickles": "head"},
}


@by_every_way
@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_that_cannot_be_got_round_is_an_error_in_time(server, fault, way):
    # Processes of a busy machine may stand still for more than a second.
    a = opened(server, way, patience_s=2.5)
    for name, value in REFUSED[fault].items():
        setattr(server, name, value)
    started = time.perf_counter()
    with pytest.raises((gpushard.StoreError, gpushard.CorruptShardError)) as caught:
        a[FEW]
    assert time.perf_counter() - started < 6
    assert str(caught.value).endswith(".")
    assert ("several parts" in fault) == ("several parts" in str(caught.value))
    for name in REFUSED[fault]:
        setattr(server, name, getattr(RangeServer(server.directory), name))
    assert_reads(a)  # nothing is remembered that the fault left behind


def test_an_encoded_body_is_told_as_such(server):
    a = opened(server)
    server.transfer = "gzip"
    with pytest.raises(gpushard.StoreError, match="an encoded body"):
        a[FEW]


@by_every_way
@pytest.mark.parametrize("etags", ["strong", "weak", "date", None])
def test_indexes_are_kept_between_reads_by_strong_etags_only(server, way, etags):
    server.etags = etags
    a = opened(server, way, whole_object_fraction=1)
    counts = [0]
    for _ in range(2):
        assert_reads(a, np.s_[0:4, 0:10])
        counts.append(server.count("c/0/0"))
    assert np.diff(counts).tolist() == [2, 1 if etags == "strong" else 2]


@by_every_way
def test_a_page_instead_of_a_404_is_an_error(server, way):
    (server.directory / "c/0/1").unlink()
    server.page = b"<html>nothing here</html>" * 40
    a = opened(server, way)
    assert_reads(a, np.s_[0:8, 0:10])
    with pytest.raises((gpushard.StoreError, gpushard.CorruptShardError)):
        a[0:8, 20:30]
    with pytest.raises(gpushard.GpushardError):
        gpushard.open_array(f"{server.url}/nowhere")


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_forbidden_object_is_missing_only_where_that_is_asked_for(server, is_missing):
    server.statuses["c/0/0"] = 403
    settings = {"forbidden_is_missing": is_missing}
    a = gpushard.open_array(server.url, storage_options=settings)
    if is_missing:
        assert (a[FEW] == -7).all()
    else:
        with pytest.raises(gpushard.StoreError, match="403"):
            a[FEW]


def test_a_server_is_left_alone_for_as_long_as_it_asks(server):
    a = opened(server)
    server.requests.clear()
    server.fail_first, server.failure, server.retry_after = 1, 503, "2"
    started = time.perf_counter()
    assert_same_bits(a[0:1, 0:1], VALUES[0:1, 0:1])
    elapsed = time.perf_counter() - started
    assert 2 <= elapsed < 5
    # Not asked once more how long to wait.
    assert [request.status for request in server.requests] == [503, 206, 206]


def test_a_server_that_asks_for_more_than_the_patience_is_given_up_at_once(server):
    a = opened(server, patience_s=3)
    server.fail_first, server.failure, server.retry_after = 10**6, 429, "3600"
    started = time.perf_counter()
    with pytest.raises(gpushard.StoreError, match="429"):
        a[0:4, 0:10]
    assert time.perf_counter() - started < 3


@pytest.mark.parametrize("asked_s", [1, 2, 4, 5, 15])
def test_pauses_that_a_server_asks_for_are_no_longer_than_the_patience_together(
    monkeypatch, asked_s
):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses))
    monkeypatch.setattr(patience, "time", clock)
    refusal = RefusalError("status code: 503", 503, retry_after_s=asked_s)

    def busy(_: ByteRequest) -> None:
        assert len(pauses) < 16
        raise refusal.as_store_error("http://x", "c/0") from refusal

    with pytest.raises(gpushard.StoreError, match="503"):
        patience.Patience(WaitLimits(15.1, 1)).ask(busy, ByteRequest("c/0"))
    assert all(asked_s <= pause <= asked_s + 1 for pause in pauses[:-1])
    last_s = 15 // asked_s * asked_s  # if nothing were added to them
    assert last_s <= sum(pauses) <= 15.2
    assert pauses[-1] > 0


def test_a_pause_that_just_fits_the_patience_is_waited_for(monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses))
    monkeypatch.setattr(patience, "time", clock)
    refusal = RefusalError("status code: 503", 503, retry_after_s=15)

    def busy_once(request: ByteRequest) -> str:
        if not pauses:
            raise refusal.as_store_error("http://x", request.key) from refusal
        return "answer"

    asked = patience.Patience(WaitLimits(15, 1))
    assert asked.ask(busy_once, ByteRequest("c/0")) == "answer"
    assert pauses == [15]


def test_readers_that_are_told_the_same_pause_do_not_come_back_together(
    server, monkeypatch
):
    """A server with room for some of them would again send the others away."""
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(patience, "time", clock)
    for _ in range(8):
        server.fail_first, server.failure, server.retry_after = 1, 429, "3"
        opened(server)
    assert all(3 <= pause <= 4 for pause in pauses)
    assert len(set(pauses)) == len(pauses) == 8


def test_readers_that_fail_together_do_not_come_back_together(server, monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(patience, "time", clock)
    for _ in range(4):
        server.fail_first, server.failure = 4, 500
        opened(server)
    assert len(set(pauses)) == len(pauses) == 16
    # A tenth of a second, and twice as long each time; or half of that.
    ratios = [pause / (0.1 * 2 ** (i % 4)) for i, pause in enumerate(pauses)]
    assert all(0.5 <= ratio <= 1 for ratio in ratios)


@by_every_way
def test_a_server_that_never_answers_is_given_up_in_time(server, way):
    a = opened(server, way, patience_s=PATIENCE_S)
    server.silence_s = PATIENCE_S + 5
    started = time.perf_counter()
    with pytest.raises(gpushard.StoreError):
        a[FEW]
    assert time.perf_counter() - started < max(3, PATIENCE_S)


@by_every_way
def test_a_shard_deleted_between_its_index_and_its_payload_is_never_filled(server, way):
    # An index kept from before may be of a shard that is gone for long; not this one.
    for etags, kept_nbytes in (("strong", MIB), ("strong", 0), (None, 0)):
        server.etags = etags
        options = {"whole_object_fraction": 1, "index_cache_nbytes": kept_nbytes}
        a = opened(server, way, **options)
        key = "c/0/0"
        kept = (server.directory / key).read_bytes()

        def delete(method: str, asked: str, key: str = key) -> None:
            if asked == key and server.count(key) > 0:
                (server.directory / key).unlink(missing_ok=True)

        server.requests.clear()
        server.before_answer = delete
        with pytest.raises(gpushard.ObjectChangedError, match=r"deleted|replaced"):
            a[0:4, 0:10]
        server.before_answer = None
        (server.directory / key).write_bytes(kept)
        assert_reads(a, np.s_[0:4, 0:10])


@pytest.mark.parametrize("way", ["small", "plain", "device"])
def test_reads_beside_a_writer_see_no_mixture(tmp_path, way):
    """Behind a server: index and payload come in two requests each."""
    places = [
        write_values(tmp_path / f"v{k}", np.full_like(VALUES, 1000 + k))
        for k in range(3)
    ]
    place = tmp_path / "a"
    shutil.copytree(places[0], place)
    done = threading.Event()

    def write() -> None:
        n = 0
        # Many times within each read, but not all of the interpreter's time.
        while not done.wait(0.001):
            n += 1
            for name in ("c/0/0", "c/1/0", "c/2/1"):
                shutil.copyfile(places[n % 3] / name, tmp_path / "next")
                os.replace(tmp_path / "next", place / name)

    seen: set[int] = set()
    with RangeServer(place) as server:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            a = opened(server, way)
            n_least = N_READS if way == "small" else N_READS // 4
            latest = time.monotonic() + 60  # most reads are refused on a busy machine
            for n in count():
                is_over = time.monotonic() > latest or len(seen) == 3
                if n >= n_least and is_over:
                    break
                try:
                    got = np.unique(on_host(a[1:6, 3:18]))
                except gpushard.ObjectChangedError:
                    continue
                assert len(got) == 1
                seen.update(got.tolist())
        finally:
            done.set()
            writer.join()
    assert len(seen) == 3


# Servers without ranges, once it is known that they have none


def test_a_server_without_ranges_is_waited_for_as_others_are(server):
    server.answers_ranges = False
    store = open_url(server.url, {"retry_config": {"max_retries": 0}})
    request = ByteRequest("c/0/0", 5, 9)
    (expected,) = store.read([request])
    server.fail_first, server.retry_after = 1, "0"
    (answer,) = store.read([request])
    assert answer is not None
    assert expected is not None
    assert answer.data.tobytes() == expected.data.tobytes()


def test_of_a_server_without_ranges_no_key_leads_out_and_403_may_mean_missing(server):
    server.answers_ranges = False
    store = open_url(server.url, {"forbidden_is_missing": True})
    store.read([ByteRequest("c/0/0", 5, 9)])
    server.statuses["c/0/1"] = 403
    assert store.read([ByteRequest("c/0/1", 5, 9)]) == [None]
    n_requests = server.count()
    with pytest.raises(gpushard.StoreError, match="key"):
        store.read([ByteRequest("c/../c/0/0", 5, 9)])
    assert server.count() == n_requests


@pytest.mark.parametrize("way", ["small", "plain", "compiled"])
def test_shards_of_a_server_without_ranges_fail_side_by_side(server, way):
    """They wait for room, one for the other, but not to fail as well."""
    patience_s, n_shards = 0.6, 6
    a = opened(server, way, patience_s=patience_s)
    server.trickles, server.transfer = "body", "chunked"
    server.answers_ranges = False
    for _ in range(2):  # the second time it is known that there are no ranges
        started = time.perf_counter()
        with pytest.raises(gpushard.StoreError, match="too slowly"):
            a[...]
        # One after the other, all shards but one would take longer than that.
        assert time.perf_counter() - started < patience_s * (n_shards - 1)
    server.trickles = None
    assert_reads(a)
