"""Reads of a loader: planned by one thread while another one reads."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader
from gpushard.errors import UnsupportedError
from gpushard.fetching import job
from gpushard.fused.files import FileBoxes
from gpushard.loader import prefetch, reading
from gpushard.loader.fields import Field
from gpushard.loader.prefetch import Prefetched, WaitStats
from gpushard.threads.stop_flag import StopFlag
from loader_data import IMAGES, N, handed_out, images, stored


def test_the_next_read_is_planned_while_one_is_read(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    plan, run = Field.read, reading.run
    n_planned, was_planned = threading.Semaphore(0), []

    def planned(field, origins, memory):
        found = plan(field, origins, memory)
        n_planned.release()
        return found

    def begun(jobs, early):
        if not was_planned:  # one for itself, then one for the read that follows
            was_planned.extend(n_planned.acquire(timeout=20) for _ in range(2))
        run(jobs, early)

    monkeypatch.setattr(Field, "read", planned)
    monkeypatch.setattr(reading, "run", begun)
    with Loader(images(), batch_size=8) as loader:
        assert np.array_equal(next(iter(loader)), IMAGES[:8])
    assert was_planned == [True, True]


def test_a_loader_that_reads_on_demand_has_no_thread(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 1)
    before = set(threading.enumerate())
    with Loader(images(), batch_size=8, prefetch_factor=0) as loader:
        next(iter(loader))
        begun = set(threading.enumerate()) - before
    assert not [thread for thread in begun if thread.name == "gpushard-loader"]


@pytest.mark.parametrize("num_threads", [None, 3])
def test_a_loader_uses_as_many_threads_as_it_is_told_or_its_arrays_were(num_threads):
    both = gpushard.concat([images(), images()], axis=1)
    options = images().source.options.but(threads=2)
    some = gpushard.Array(replace(images().source, options=options))
    loader = Loader({"both": both, "some": some}, num_threads=num_threads)
    threads = [
        m.source.options.threads for f in loader._settings.fields for m in f.members
    ]
    plain = both.arrays[0].source.options.threads
    assert threads == ([plain, plain, 2] if num_threads is None else [3, 3, 3])


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_what_goes_wrong_in_planning_reaches_the_consumer(prefetch_factor, monkeypatch):
    def fails(field, origins, memory):
        raise MemoryError("no room for a plan")

    monkeypatch.setattr(Field, "read", fails)
    loader = Loader(images(), prefetch_factor=prefetch_factor)
    with pytest.raises(MemoryError, match="no room for a plan"):
        next(iter(loader))


@pytest.fixture
def n_read(monkeypatch):
    """Samples of each read of a field; a usual load has 4 KiB."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 512)
    read, n_read = Field.read, []

    def noted(field, origins, memory):
        n_read.append(len(origins))
        return read(field, origins, memory)

    monkeypatch.setattr(Field, "read", noted)
    return n_read


@pytest.mark.parametrize(
    ("rows", "options", "n"),
    [([128], {}, 16), ([128], {"scale": 2}, 8), ([127], {}, 8), ([128, 127], {}, 4)],
)
def test_loads_of_rows_that_are_never_there_twice_are_twice_as_large(
    rows, options, n, n_read
):
    arrays = tuple(stored(np.zeros((64, m), "i4"), (1, m)) for m in rows)
    with Loader(arrays, batch_size=1, **options) as loader:
        assert len(list(loader)) == 64
    assert max(n_read) == n


@pytest.mark.parametrize(("row", "n"), [(128, 4 * 16), (127, 4 * 8)])
def test_loads_of_a_perfect_shuffle_grow_to_four_times_their_size(row, n, n_read):
    few_inner_chunks = stored(np.zeros((256, row), "i4"), (64, row))
    with Loader(few_inner_chunks, batch_size=1, shuffle=True) as loader:
        assert len(list(loader)) == 256
    assert max(n_read) == n


@pytest.mark.parametrize("keeps", [False, True])
def test_a_read_is_ready_to_be_decoded_before_the_one_ahead_is_over(
    keeps, monkeypatch, tmp_path
):
    """But where inner chunks are kept: those of the read ahead are found then."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    plain_prepare, plain_run = reading.prepare, reading.run
    prepared, begun = [], []

    def prepare(jobs):
        prepared.append(threading.get_ident())
        return plain_prepare(jobs)

    def run(ready, early):
        begun.append(threading.get_ident())
        plain_run(ready, early)

    monkeypatch.setattr(reading, "prepare", prepare)
    monkeypatch.setattr(reading, "run", run)
    options = gpushard.Options(chunk_cache_nbytes=1 << 20 if keeps else 0)
    z = zarr.create_array(
        tmp_path, shape=(N, 6), chunks=(4, 6), shards=(12, 6), dtype="u2"
    )
    z[...] = IMAGES.reshape(N, 6)
    a = gpushard.open_array(tmp_path, options=options)
    with Loader(a, batch_size=8) as loader:
        assert np.array_equal(np.concatenate(list(loader)), z[...])
    assert len(prepared) == len(begun) > 2
    assert (set(prepared) == set(begun)) == keeps


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Rows that two threads decode in compiled loops: their reader, and its plans."""
    pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
    monkeypatch.setattr(reading, "LOAD_NBYTES", 8 * 12)
    monkeypatch.setattr(job, "SMALLEST_SHARE_NBYTES", 1)
    z = zarr.create_array(
        tmp_path, shape=(N, 6), chunks=(4, 6), shards=(12, 6), dtype="u2"
    )
    z[...] = IMAGES.reshape(N, 6)
    options = gpushard.Options(threads=2, compile_nbytes=0)
    a = gpushard.open_array(tmp_path, options=options)
    settings = Loader(a, batch_size=8)._settings
    reader = reading.Reader(
        fields=settings.fields,
        origins=settings.origins,
        axis=settings.fields[0].axis("chunk"),
        place=settings.place(),
        on_error="raise",
        stop=StopFlag(),
    )
    order = settings.shuffling.order(0)
    return reader, reader.plans(order, settings.share(order.n), 0)


def are_done(started, timeout=10):
    """Whether other threads have done what they were asked for."""
    ((_, helpers),) = started._started
    for helper in helpers:
        if not helper._is_running.acquire(timeout=timeout):
            return False
        helper._is_running.release()
    return True


def test_others_begin_with_a_read_as_soon_as_it_is_planned(planned, monkeypatch):
    reader, plans = planned
    plain, threads = FileBoxes.place, set()

    def place(some):
        threads.add(threading.get_ident())
        plain(some)

    monkeypatch.setattr(FileBoxes, "place", place)
    made = [next(plans), next(plans)]
    assert all(are_done(one.early) for one in made)
    assert threads
    loads = list(reader.loads(iter(made)))
    assert threading.get_ident() not in threads
    read = np.concatenate([load.arrays[0] for load in loads])
    assert np.array_equal(read, IMAGES.reshape(N, 6)[: len(read)])


def test_a_read_that_was_begun_and_that_nobody_makes_is_ended(planned, monkeypatch):
    _, plans = planned
    begun, may_end = threading.Event(), threading.Event()
    plain = FileBoxes.place

    def place(some):
        begun.set()
        may_end.wait(10)
        plain(some)

    monkeypatch.setattr(FileBoxes, "place", place)
    early = next(plans).early
    assert begun.wait(10)
    threading.Timer(0.05, may_end.set).start()
    plans.close()
    assert are_done(early, timeout=0)


def test_what_others_find_damaged_is_raised_where_the_read_is_made(
    planned, monkeypatch
):
    reader, plans = planned

    def place(some):
        raise gpushard.CorruptShardError("damaged", shard_key="c/0/0")

    monkeypatch.setattr(FileBoxes, "place", place)
    first = next(plans)
    assert are_done(first.early)
    with pytest.raises(gpushard.CorruptShardError, match="damaged"):
        next(reader.loads(iter([first])))


def test_an_error_names_the_one_of_several_arrays_that_it_is_about(tmp_path):
    z = zarr.create_array(
        tmp_path / "labels", shape=(N,), chunks=(4,), shards=(8,), dtype="u2"
    )
    z[...] = np.arange(N)
    (tmp_path / "labels/c/2").write_bytes(bytes(80))
    arrays = {"images": images(), "labels": gpushard.open_array(tmp_path / "labels")}
    with pytest.raises(gpushard.CorruptShardError) as caught, Loader(arrays) as loader:
        list(loader)
    assert str(caught.value.store_url).endswith("labels")
    assert caught.value.__notes__[0].endswith(" of labels")


def test_what_may_run_far_ahead_needs_no_room_for_all_of_it(monkeypatch):
    monkeypatch.setattr(prefetch, "_MOST_AHEAD", 3)
    made, is_far = [], threading.Event()

    def items():
        for i in range(9):
            made.append(i)
            if i == 2:
                is_far.set()
            yield i

    stage = Prefetched(items(), 10**6, StopFlag(), WaitStats())
    stage.start()
    assert is_far.wait(10)
    stage.join(0.05)
    assert made == [0, 1, 2]
    assert list(stage) == list(range(9))


def test_an_end_that_an_interrupt_kept_back_is_seen_by_whoever_waits(monkeypatch):
    monkeypatch.setattr(prefetch, "_LOOK_AGAIN_S", 0.01)
    goes_on = threading.Event()
    stage = Prefetched(iter(goes_on.wait, True), 1, StopFlag(), WaitStats())
    stage.start()
    threading.Timer(0.05, stage._channel.stop.set).start()
    assert list(stage) == []
    goes_on.set()
    stage.join(10)


def test_nobody_waits_for_a_thread_that_never_begins(monkeypatch):
    """It ends without a word where there is no memory for its first step."""
    monkeypatch.setattr(prefetch, "_LONGEST_START_S", 0.05)
    monkeypatch.setattr(prefetch._Stage, "_bootstrap", lambda _: None)
    stage = Prefetched(iter("a"), 1, StopFlag(), WaitStats())
    with pytest.raises(UnsupportedError, match="want of memory"):
        stage.start()
    assert list(stage) == []
    prefetch._end_all()  # nor does the end of the interpreter
    threading._limbo.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_ended_without_a_word(monkeypatch):
    def leave() -> None:
        left()
        raise MemoryError

    stage, left = Prefetched(iter("a"), 2, StopFlag(), WaitStats()), prefetch.leave
    with monkeypatch.context() as patch:
        patch.setattr(prefetch, "leave", leave)
        stage.start()
        stage.join(10)
    assert next(stage) == "a"
    with pytest.raises(MemoryError, match="no memory"):
        next(stage)


def test_samples_of_one_damaged_inner_chunk_are_tried_together(tmp_path, monkeypatch):
    z = zarr.create_array(tmp_path, shape=(8, 3), chunks=(4, 3), dtype="u2")
    z[...] = 1
    (tmp_path / "c/1/0").write_bytes(b"?")
    begun, tried = reading.Reader._begin_again, []

    def told(reader, samples, losses):
        tried.append(samples.tolist())
        return begun(reader, samples, losses)

    monkeypatch.setattr(reading.Reader, "_begin_again", told)
    damaged = gpushard.open_array(tmp_path)
    options = {"batch_size": 4, "on_error": "skip"}
    assert not list(Loader(damaged, sampler=[4, 5, 6, 7], **options))
    assert tried == [[4, 5, 6, 7], []]


@pytest.mark.parametrize("order", [{}, {"shuffle": True}])
@pytest.mark.parametrize("lost", [(), (9, 40, 41, 102)])
def test_samples_that_only_small_reads_give_are_not_left_out(order, lost, monkeypatch):
    """As of a store that fails now and then: many requests never succeed together."""
    options = {"batch_size": 8, "return_index": True, **order}
    whole = handed_out(Loader(images(), **options))
    done, n_large = reading.Reader._finish, []

    def finish(reader, read):
        if np.isin(read.samples, lost).any():
            raise gpushard.CorruptShardError("damaged")
        if len(read.samples) > 20:
            n_large.append(len(read.samples))
            raise gpushard.StoreError("the server is busy")
        return done(reader, read)

    monkeypatch.setattr(reading.Reader, "_finish", finish)
    monkeypatch.setattr(reading, "_PAUSES", (0.01,))
    rows = gpushard.Ragged(images(), np.arange(N + 1))
    loader = Loader((images(), rows), on_error="skip", **options)
    seen = []
    for (batch, texts), index in loader:
        assert np.array_equal(batch, IMAGES[index])
        assert np.array_equal(np.concatenate(texts), IMAGES[index])
        seen.append(index.tolist())
    assert n_large
    assert seen == [[i for i in batch if i not in lost] for batch in whole]
    assert loader.stats()["samples_skipped"] == len(lost)


def test_a_sample_that_is_damaged_each_second_time_is_left_out(monkeypatch):
    done, was_read = reading.Reader._finish, [False]

    def finish(reader, read):
        if 7 in read.samples:
            was_read[0] = len(read.samples) == 1 and not was_read[0]
            if not was_read[0]:
                raise gpushard.CorruptShardError("damaged")
        return done(reader, read)

    monkeypatch.setattr(reading.Reader, "_finish", finish)
    options = {"batch_size": 8, "return_index": True, "on_error": "skip"}
    arrays = {"x": images(), "y": images()}
    seen = [i for b in Loader(arrays, **options) for i in b["index"].tolist()]
    assert seen == [i for i in range(N) if i != 7]
