"""An epoch over HTTP and S3 is whole, though the server fails in the middle of it."""

from __future__ import annotations

from threading import Event
from time import monotonic, sleep

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader, StoreError
from gpushard.loader import losses, reading
from gpushard.options import MIB
from gpushard.reading import read as read_module
from gpushard.stores.remote_url import open_url
from gpushard.threads.workers import StartedTasks
from loader_data import IMAGES, N
from range_server import RangeServer
from s3_server import make_bucket, s3_server

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network

OPTIONS = {"batch_size": 8, "shuffle": True, "block": "chunk", "buffer_blocks": 2}
OPTIONS |= {"return_index": True, "prefetch_factor": 1}
SHARDS = [f"images/c/{k}/0/0" for k in range(9)]


@pytest.fixture
def stored_images(tmp_path, monkeypatch):
    """Directory with `IMAGES`, of which a loader makes 13 reads."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    monkeypatch.setattr(reading, "_PAUSES", (0.01, 0.01, 0.01))
    z = zarr.create_array(
        tmp_path / "images",
        shape=IMAGES.shape,
        chunks=(4, 2, 3),
        shards=(12, 2, 3),
        dtype="u2",
    )
    z[...] = IMAGES
    return tmp_path


@pytest.fixture
def server(stored_images):
    with RangeServer(stored_images) as running:
        yield running


def samples_of(loader, in_the_middle):
    """Samples of an epoch, in whose middle something happens."""
    seen = []
    for step, (batch, index) in enumerate(loader):
        assert np.array_equal(batch, IMAGES[index])
        seen += index.tolist()
        if step == 2:
            in_the_middle()
    return sorted(seen)


@pytest.mark.parametrize("failure", [0, 503])
def test_a_server_that_fails_twice_is_asked_again_by_the_store(server, failure):
    loader = Loader(gpushard.open_array(f"{server.url}/images"), **OPTIONS)

    def fail():
        server.failure, server.fail_first = failure, 2

    assert samples_of(loader, fail) == list(range(N))
    assert server.fail_first == 0
    assert loader.stats()["reads_retried"] == 0


@pytest.mark.parametrize("prefetch_factor", [0, 1, 3])
def test_the_next_read_is_asked_for_while_one_waits_for_its_answers(
    server, prefetch_factor, monkeypatch
):
    array = gpushard.open_array(server.url + "/images")
    store = type(array.source.store)
    read, is_next_asked, found = store.read, Event(), []

    def waiting(self, requests):
        keys = {request.key.partition("c/")[2] for request in requests}
        if keys & {"2/0/0"}:
            is_next_asked.set()
        elif keys & {"1/0/0"}:
            found.append(is_next_asked.wait(10 if prefetch_factor else 0.5))
        elif keys & {"0/0/0"}:  # of the read that is awaited: it is to come early
            found.append(not is_next_asked.wait(0.3) and bool(prefetch_factor))
        return read(self, requests)

    monkeypatch.setattr(store, "read", waiting)
    loader = Loader(array, batch_size=12, prefetch_factor=prefetch_factor)
    assert np.array_equal(np.concatenate(list(loader)), IMAGES)
    assert set(found) == {prefetch_factor > 0}


def settled(count, n):
    """A count soon after it has reached `n`."""
    deadline = monotonic() + 10
    while count() < n and monotonic() < deadline:
        sleep(0.01)
    sleep(0.2)
    return count()


@pytest.mark.parametrize("prefetch_factor", [1, 2, 4])
def test_as_many_loads_are_under_way_as_are_read_ahead_and_the_one_awaited(
    server, prefetch_factor, monkeypatch
):
    # Each load is a shard, and only the first one is answered at once.
    array = gpushard.open_array(server.url + "/images")
    store = type(array.source.store)
    read, held, goes_on = store.read, set(), Event()

    def waiting(self, requests):
        late = {r.key for r in requests if "c/0/" not in r.key}
        held.update(late)
        assert not late or goes_on.wait(20)
        return read(self, requests)

    monkeypatch.setattr(store, "read", waiting)
    loader = Loader(array, batch_size=12, prefetch_factor=prefetch_factor)
    batches = iter(loader)
    first = next(batches)
    n_under_way = settled(lambda: len(held), 1 + prefetch_factor)
    goes_on.set()
    assert np.array_equal(np.concatenate([first, *batches]), IMAGES)
    assert n_under_way == 1 + prefetch_factor


@pytest.mark.parametrize("prefetch_factor", [1, 2, 4])
def test_no_more_loads_are_read_ahead_over_a_network_than_elsewhere(
    server, prefetch_factor
):
    array = gpushard.open_array(server.url + "/images")
    with Loader(array, batch_size=12, prefetch_factor=prefetch_factor) as loader:
        batches = iter(loader)
        # In hand, planned, and those that wait or are being made.
        for n in (2 + prefetch_factor, 3 + prefetch_factor):
            next(batches)
            assert settled(lambda: sum(map(bool, map(server.count, SHARDS))), n) == n


def test_a_queue_of_loads_that_are_asked_for_is_full_when_a_batch_is_there(server):
    array = gpushard.open_array(server.url + "/images")
    with Loader(array, batch_size=12, prefetch_factor=4) as loader:
        for batch in loader:
            del batch
            sleep(0.1)
    assert loader.stats()["queue_occupancy"] > 0.5


@pytest.mark.parametrize(
    ("prefetch_factor", "limit", "each"),
    [(1, 1024, 512), (4, 1024, 128), (2, 256, 64), (8, 256, 64), (4, 64, 32)],
)
def test_loads_that_are_asked_for_together_share_the_room_of_one(
    server, prefetch_factor, limit, each, monkeypatch
):
    limits = set()

    class Noted(StartedTasks):
        def __init__(self, tasks, n_workers, most_nbytes, n_beside):
            limits.add(most_nbytes)
            super().__init__(tasks, n_workers, most_nbytes, n_beside)

    monkeypatch.setattr(read_module, "StartedTasks", Noted)
    options = gpushard.Options(memory_limit=limit * MIB)
    array = gpushard.open_array(server.url + "/images", options=options)
    list(Loader(array, batch_size=12, prefetch_factor=prefetch_factor))
    (most_nbytes,) = limits
    assert 0.9 * each * MIB < most_nbytes <= each * MIB


def test_a_server_that_refuses_for_a_while_is_asked_again_by_the_loader(server):
    begun, refused = Event(), []

    # A request that is under way when the refusals begin is one of them, too: more
    # refusals than the loader repeats reads would end the epoch.
    def answer(method, key):
        if begun.is_set() and key in SHARDS and len(refused) < 3:
            refused.append(key)
            server.statuses[key] = 403
        else:
            server.statuses.clear()

    server.before_answer = answer
    loader = Loader(gpushard.open_array(f"{server.url}/images"), **OPTIONS)
    samples = samples_of(loader, begun.set)
    assert samples == list(range(N))
    assert refused
    assert loader.stats()["reads_retried"] >= 1
    assert loader.stats()["samples_skipped"] == 0


def test_a_server_that_refuses_for_good_is_an_error_that_names_samples(server):
    loader = Loader(gpushard.open_array(f"{server.url}/images"), **OPTIONS)
    with pytest.raises(StoreError, match="403 Forbidden") as caught:
        samples_of(loader, lambda: server.statuses.update(dict.fromkeys(SHARDS, 403)))
    assert caught.value.shard_key is not None
    assert "while a loader read samples" in caught.value.__notes__[0]
    assert loader.stats()["reads_retried"] == 3


def test_samples_that_a_server_refuses_can_be_left_out(server):
    server.statuses[SHARDS[2]] = 403
    array = gpushard.open_array(f"{server.url}/images")
    loader = Loader(array, on_error="skip", **OPTIONS)
    assert samples_of(loader, lambda: None) == [
        i for i in range(N) if i not in range(24, 36)
    ]
    assert loader.stats()["samples_skipped"] == 12


@pytest.mark.parametrize("n_arrays", [1, 2])
def test_a_shard_that_is_slow_to_fail_is_not_tried_for_each_sample(
    server, n_arrays, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", N * 12)
    monkeypatch.setattr(losses, "_SLOW_S", -1.0)  # all failures are slow
    server.statuses[SHARDS[2]] = server.statuses[SHARDS[5]] = 403
    arrays = [gpushard.open_array(f"{server.url}/images") for _ in range(n_arrays)]
    loader = Loader(dict(zip("ab", arrays, strict=False)), on_error="skip")
    seen = sum(map(len, (batch["a"] for batch in loader)))
    assert seen == N - 24
    assert loader.stats()["samples_skipped"] == 24
    # Four tries to read, one to find each shard, and four more for each.
    assert server.count(SHARDS[2]) <= 9 * n_arrays
    assert server.count(SHARDS[5]) <= 10 * n_arrays


def test_an_epoch_over_s3_survives_a_failure(stored_images, monkeypatch):
    with s3_server() as endpoint:
        options = make_bucket(endpoint, monkeypatch)
        store = open_url("s3://bucket", options)
        for path in stored_images.rglob("*"):
            if path.is_file():
                key = path.relative_to(stored_images).as_posix()
                obstore.put(store.object_store, key, path.read_bytes())
        array = gpushard.open_array("s3://bucket/images", storage_options=options)
        read, failing = type(array.source.store).read, []

        def flaky(store, requests):
            if failing:
                raise failing.pop()
            return read(store, requests)

        monkeypatch.setattr(type(array.source.store), "read", flaky)
        loader = Loader(array, **OPTIONS)
        fail = [StoreError("the server is busy")] * 2
        assert samples_of(loader, lambda: failing.extend(fail)) == list(range(N))
        assert loader.stats()["reads_retried"] == 2
