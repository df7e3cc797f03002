"""What fails together is found out together; a store that is dead ends the epoch."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader
from gpushard.loader import losses, reading
from gpushard.loader.fields import Field
from gpushard.loader.groups import Groups
from loader_data import IMAGES, N, images

SHARD = 12
"""Samples of a shard, in inner chunks of 2; there are nine shards."""
SAMPLES = np.arange(N)


@pytest.fixture
def place(tmp_path):
    z = zarr.create_array(
        tmp_path / "images",
        shape=IMAGES.shape,
        chunks=(2, 2, 3),
        shards=(SHARD, 2, 3),
        dtype="u2",
    )
    z[...] = IMAGES
    return tmp_path / "images"


@pytest.fixture
def tried(monkeypatch):
    """Numbers of samples of all reads that were begun to repeat a load, or parts."""
    begin_again, tried = reading.Reader._begin_again, []

    def told(reader, samples, losses):
        tried.append(len(samples))
        return begin_again(reader, samples, losses)

    monkeypatch.setattr(reading.Reader, "_begin_again", told)
    monkeypatch.setattr(reading, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(reading, "_SHORT_PAUSE", 0.0)
    return tried


@pytest.fixture
def told():
    """Losses of an epoch, and a function that makes an error of the third shard."""
    array = images()
    (field,) = Loader(array)._settings.fields
    where = {"store_url": array.source.store.url, "array_path": array.path}

    def failure(kind, number=2):
        return kind("failed", shard_key=f"c/{number}/0/0", **where)

    return losses.Losses([field], Loader(array)._settings.origins), failure


def damage_index(place, number):
    shard = place / f"c/{number}/0/0"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return data


def refuse(place, *numbers):
    """Have the store fail at these shards: there is no file to read."""
    for number in numbers:
        shard = place / f"c/{number}/0/0"
        shard.unlink()
        shard.mkdir()


def opened(place):
    """The array; nothing that was read before is known."""
    return gpushard.open_array(
        place, options=gpushard.Options(chunk_cache_nbytes=0, index_cache_nbytes=0)
    )


def seen_by(loader):
    seen = []
    for batch, index in loader:
        assert np.array_equal(batch, IMAGES[index])
        seen += index.tolist()
    return sorted(seen)


def samples_beside(*numbers):
    return [i for i in range(N) if i // SHARD not in numbers]


@pytest.mark.parametrize("prefetch_factor", [0, 2])
@pytest.mark.parametrize("harm", [damage_index, refuse])
def test_a_lost_shard_is_found_out_once_an_epoch(
    place, harm, prefetch_factor, tried, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    harm(place, 2)
    options = {"shuffle": True, "return_index": True, "on_error": "skip"}
    loader = Loader(
        opened(place), batch_size=8, prefetch_factor=prefetch_factor, **options
    )
    for epoch in (1, 2):
        tried.clear()
        assert seen_by(loader) == samples_beside(2)
        assert loader.stats()["samples_skipped"] == epoch * SHARD
        # One load fails, tries its samples, and reads those that are left. What comes
        # behind it knows, and none is tried for each of thirteen batches.
        assert 0 < len(tried) < 26


def test_a_shard_that_was_repaired_is_read_in_the_next_epoch(place, tried):
    shard = place / "c/2/0/0"
    data = damage_index(place, 2)
    options = {"batch_size": 8, "return_index": True, "on_error": "skip", "epochs": 2}
    loader = Loader(opened(place), prefetch_factor=0, **options)
    assert seen_by(loader) == samples_beside(2)
    shard.write_bytes(data)
    assert seen_by(loader) == list(range(N))


def test_an_index_that_is_garbled_once_loses_no_shard(place, tried, monkeypatch):
    array = opened(place)
    options = {"batch_size": N, "return_index": True, "on_error": "skip"}
    whole = damage_index(place, 2)
    begin_again, damaged = reading.Reader._begin_again, place / "c/2/0/0"

    def repaired(reader, samples, losses):
        damaged.write_bytes(whole)
        return begin_again(reader, samples, losses)

    monkeypatch.setattr(reading.Reader, "_begin_again", repaired)
    assert seen_by(Loader(array, **options)) == list(range(N))


@pytest.mark.parametrize("harm", [damage_index, refuse])
@pytest.mark.parametrize("order", [{}, {"shuffle": True}])
def test_windows_that_touch_a_lost_shard_are_lost_and_no_others(
    place, harm, order, tried
):
    harm(place, 2)
    array = opened(place)
    loader = Loader(
        {"now": array, "next": array},
        window={"now": 3, "next": 2},
        lead={"next": 5},
        stride=1,
        batch_size=16,
        on_error="skip",
        return_index=True,
        **order,
    )
    seen = [i for batch in loader for i in batch["index"].tolist()]
    lost = set(range(2 * SHARD, 3 * SHARD))
    assert sorted(seen) == [
        i for i in range(N - 6) if lost.isdisjoint({i, i + 1, i + 2, i + 5, i + 6})
    ]
    assert len(tried) < 24


@pytest.mark.parametrize("harm", [damage_index, refuse])
def test_windows_beyond_the_array_do_not_need_its_last_shard(place, harm, tried):
    harm(place, N // SHARD)
    loader = Loader(
        opened(place),
        window=2,
        lead=3,
        stride=1,
        padding="fill",
        batch_size=16,
        on_error="skip",
        return_index=True,
    )
    seen = [i for _, index in loader for i in index.tolist()]
    last = N // SHARD * SHARD
    assert seen == [i for i in range(N) if i + 4 < last or i + 3 >= N]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_lost_shard_of_joined_arrays_is_found_out_at_once(place, axis, tried):
    zarr.save_array(place.parent / "others", IMAGES)
    damage_index(place, 2)
    both = gpushard.concat([opened(place.parent / "others"), opened(place)], axis)
    loader = Loader(both, batch_size=16, on_error="skip", return_index=True)
    seen = [i for _, index in loader for i in index.tolist()]
    kept = samples_beside(2)
    assert seen == (kept if axis else [*range(N), *(N + i for i in kept)])
    assert len(tried) < 5


def test_samples_of_a_store_that_fails_at_one_shard_are_told_by_three_tries(
    place, tried
):
    refuse(place, 2)
    options = {"return_index": True, "on_error": "skip"}
    assert seen_by(Loader(opened(place), batch_size=N, **options)) == samples_beside(2)
    # Four tries each of three samples of the shard; but once, groups.
    assert tried.count(1) <= 4 * 3 + 4
    assert len(tried) < 26


class Dead:
    """A store's `read` that fails from the n-th call on."""

    def __init__(self, array, n_alive, monkeypatch):
        self._read = array.source.store.read
        self.n_alive = n_alive
        monkeypatch.setattr(type(array.source.store), "read", lambda _, r: self(r))

    def __call__(self, requests):
        self.n_alive -= 1
        if self.n_alive < 0:
            raise gpushard.StoreError("no route", shard_key=requests[0].key, hint="go")
        return self._read(requests)


@pytest.mark.parametrize("order", [{}, {"shuffle": True}])
@pytest.mark.parametrize("n_alive", [0, 5])
def test_a_dead_store_ends_the_epoch(place, order, n_alive, tried, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    monkeypatch.setattr(losses, "_DEAD_S", 0.0)
    array = opened(place)
    Dead(array, n_alive, monkeypatch)
    loader = Loader(array, batch_size=8, on_error="skip", **order)
    with pytest.raises(gpushard.StoreError) as caught:
        list(loader)
    assert "can read no sample any more: no route" in str(caught.value)
    assert "and no store that fails for all of them: go." in str(caught.value)
    assert caught.value.shard_key is not None


def test_a_store_that_is_slow_to_fail_is_dead_after_a_few_samples(
    place, tried, monkeypatch
):
    monkeypatch.setattr(losses, "_DEAD_S", 0.0)
    monkeypatch.setattr(losses, "_SLOW_S", -1.0)
    array = opened(place)
    Dead(array, 0, monkeypatch)
    with pytest.raises(gpushard.StoreError, match="no sample any more"):
        list(Loader(array, batch_size=N, on_error="skip"))
    # Three to repeat the load, and a sample of each of two other shards.
    assert tried == [N, N, N, 1, 1]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (3, 4, 5), (6, 7, 8)])
def test_a_store_that_fails_at_some_shards_is_not_dead(
    place, numbers, tried, monkeypatch
):
    monkeypatch.setattr(losses, "_DEAD_S", 0.0)
    monkeypatch.setattr(losses, "_SLOW_S", -1.0)
    refuse(place, *numbers)
    options = {"return_index": True, "on_error": "skip"}
    loader = Loader(opened(place), batch_size=N, **options)
    assert seen_by(loader) == samples_beside(*numbers)


@pytest.mark.parametrize("begins_at", [0, 1])
def test_an_epoch_without_a_sample_for_want_of_a_store_is_an_error(
    place, begins_at, tried
):
    refuse(place, 2)
    samples = range(2 * SHARD, 3 * SHARD)
    loader = Loader(opened(place), batch_size=4, sampler=samples, on_error="skip")
    if begins_at:  # the rest of an epoch may lie in a shard that is lost
        loader.load_state_dict(loader.state_dict() | {"step": begins_at})
        assert list(loader) == []
    else:
        with pytest.raises(gpushard.StoreError, match="no sample any more"):
            list(loader)


def test_only_so_many_shards_are_remembered(told, monkeypatch):
    monkeypatch.setattr(losses, "_MOST_FAILED", 2)
    known, failure = told
    for number in (0, 1, 2, 2, 1, 0):
        error = failure(gpushard.CorruptShardError, number)
        known.note_failed(error, SAMPLES, 0.0, "once")
    assert np.flatnonzero(known.of(SAMPLES)).tolist() == [*range(24)]


def test_shards_that_are_too_many_to_be_remembered_are_left_out_all_the_same(
    place, tried, monkeypatch
):
    monkeypatch.setattr(losses, "_MOST_FAILED", 1)
    for number in (2, 5, 6):
        damage_index(place, number)
    options = {"return_index": True, "on_error": "skip"}
    loader = Loader(opened(place), batch_size=16, **options)
    assert seen_by(loader) == samples_beside(2, 5, 6)


def test_shards_in_a_row_that_fail_at_once_are_no_dead_store(place, tried, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    refuse(place, 1, 2, 3, 4, 5)
    options = {"return_index": True, "on_error": "skip"}
    loader = Loader(opened(place), batch_size=4, **options)
    assert seen_by(loader) == samples_beside(1, 2, 3, 4, 5)


def test_what_is_known_to_be_lost_is_not_planned(place, tried, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    damage_index(place, 2)
    read, planned = Field.read, []

    def noted(field, origins, memory):
        planned.append(len(origins))
        return read(field, origins, memory)

    monkeypatch.setattr(Field, "read", noted)
    options = {"shuffle": True, "prefetch_factor": 0, "on_error": "skip"}
    loader = Loader(opened(place), batch_size=8, **options)
    assert sum(map(len, loader)) == N - SHARD
    # Each of the thirteen loads once; the first but one may be planned too early.
    assert len(planned) - len(tried) <= 14


def test_what_is_lost_after_a_load_was_planned_is_left_out(place, tried, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    damage_index(place, 2)
    array, left_out, lost = opened(place), reading.Reader._leave_out_lost, []
    where = {"store_url": array.source.store.url, "array_path": array.path}
    error = gpushard.CorruptShardError("damaged", shard_key="c/5/0/0", **where)

    def lose_another(reader, read):
        if not read.kept.all() and not lost:
            lost.extend(i for i in read.samples.tolist() if i // SHARD == 5)
            read.losses.note_failed(error, read.samples, 0.0, "once")
            read.losses.note_failed(error, read.samples, 0.0, "once")
        left_out(reader, read)

    monkeypatch.setattr(reading.Reader, "_leave_out_lost", lose_another)
    options = {"shuffle": True, "return_index": True, "on_error": "skip"}
    loader = Loader(array, batch_size=32, prefetch_factor=0, **options)
    seen = seen_by(loader)
    assert lost
    assert not {*lost, *range(2 * SHARD, 3 * SHARD)} & {*seen}
    assert len({*seen}) == len(seen) == N - loader.stats()["samples_skipped"]


def test_a_sample_that_failed_before_its_group_is_tried_again_after_others(told):
    known, failure = told
    known.note_failed(failure(gpushard.StoreError), SAMPLES[:1], 0.0, "alone")
    groups = Groups(SAMPLES, known, images().source.layout.inner_axes[0])
    (early,) = groups.next().tolist()
    groups.note_failed(failure(gpushard.StoreError, early // SHARD), 0.0)
    while (group := groups.next()) is not None:
        assert early not in group or known.n_failing == 0
        groups.note_read()
    assert groups.kept.all()


def test_seconds_of_failing_count_since_anything_was_read(told):
    known, failure = told
    errors = [failure(gpushard.StoreError, number) for number in range(3)]
    known.note_failed(errors[0], SAMPLES[:1], 9.0, "alone")
    known.note_read(SAMPLES[50:51])
    for number, error in enumerate(errors):
        known.note_failed(error, SAMPLES[number * SHARD :][:1], 1.0, "alone")
    known.refuse_dead_store()
    known.note_failed(errors[2], SAMPLES[2 * SHARD :][:1], 7.0, "alone")
    with pytest.raises(gpushard.StoreError, match="no sample any more"):
        known.refuse_dead_store()


@pytest.mark.parametrize(
    ("kind", "n"), [(gpushard.StoreError, 3), (gpushard.CorruptShardError, 2)]
)
@pytest.mark.parametrize("read", [25, 0])
def test_failures_of_a_shard_count_only_if_nothing_of_it_was_read_since(
    told, kind, n, read
):
    known, failure = told
    error = failure(kind)
    for _ in range(n - 1):
        known.note_failed(error, SAMPLES[24:25], 0.0, "alone")
    assert not known.of(SAMPLES).any()
    known.note_read(SAMPLES[read : read + 1])
    known.note_failed(error, SAMPLES[24:25], 0.0, "alone")
    lost = np.flatnonzero(known.of(SAMPLES)).tolist()
    assert lost == ([] if read == 25 else [*range(24, 36)])


def test_a_store_whose_arrays_change_does_not_fail(told):
    known, failure = told
    for kind in (gpushard.ObjectChangedError, gpushard.WindowMovedError):
        for _ in range(4):
            known.note_failed(failure(kind), SAMPLES[24:25], 60.0, "alone")
    assert not known.n_failing
    assert not known.of(SAMPLES).any()
    known.refuse_dead_store(is_end=True)
    known.note_failed(failure(gpushard.StoreError), SAMPLES[24:25], 60.0, "alone")
    assert known.n_failing
    with pytest.raises(gpushard.StoreError):
        known.refuse_dead_store(is_end=True)
