"""Interrupts end a loader, errors reach its consumer, and nothing is left running."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader
from gpushard.loader import reading
from gpushard.loader.fields import Field
from gpushard.threads.stop_flag import StopFlag
from loader_data import IMAGES, N


@pytest.fixture
def place(tmp_path):
    """`IMAGES` in inner chunks of 4 samples and shards of 12, with checksums."""
    z = zarr.create_array(
        tmp_path / "images",
        shape=IMAGES.shape,
        chunks=(4, 2, 3),
        shards=(12, 2, 3),
        dtype="u2",
        compressors=zarr.codecs.ZstdCodec(checksum=True),
    )
    z[...] = IMAGES
    return tmp_path / "images"


@pytest.fixture
def damaged(place):
    """The same, the first inner chunk of the third shard (samples 24 to 27) damaged."""
    shard = place / "c/2/0/0"
    shard.write_bytes(b"\0" * 8 + shard.read_bytes()[8:])
    return gpushard.open_array(place)


def loader_threads():
    return [t for t in threading.enumerate() if t.name == "gpushard-loader"]


def wait_for_no_threads():
    for _ in range(100):
        if not loader_threads():
            return
        time.sleep(0.05)
    raise AssertionError(loader_threads())


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_an_error_reaches_the_consumer_with_shard_and_samples(damaged, prefetch_factor):
    options = {"shuffle": True, "prefetch_factor": prefetch_factor}
    loader = Loader({"images": damaged}, batch_size=8, **options)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(loader)
    assert caught.value.shard_key == "c/2/0/0"
    assert caught.value.inner_chunk == (6, 0, 0)
    assert caught.value.store_url.endswith("images")
    (note,) = caught.value.__notes__
    assert note == "while a loader read samples 24, 25, 26, 27 of images"
    assert pickle.loads(pickle.dumps(caught.value)).__notes__ == [note]
    wait_for_no_threads()


@pytest.mark.parametrize(
    "order", [{}, {"shuffle": True}, {"shuffle": True, "block": 9}]
)
def test_damaged_samples_can_be_left_out(damaged, order, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 30 * 12)
    options = {"on_error": "skip", "return_index": True}
    loader = Loader(damaged, batch_size=8, **order, **options)
    seen = []
    for batch, index in loader:
        assert np.array_equal(batch, IMAGES[index])
        seen += index.tolist()
    assert sorted(seen) == [i for i in range(N) if i not in range(24, 28)]
    assert loader.stats()["samples_skipped"] == 4
    assert loader.stats()["samples"] == N - 4


@pytest.mark.parametrize("padding", ["drop", "fill"])
def test_only_samples_whose_row_ahead_is_damaged_are_left_out(damaged, padding):
    options = {"on_error": "skip", "return_index": True, "padding": padding}
    loader = Loader(damaged, batch_size=8, lead=2, **options)
    seen = [i for _, index in loader for i in index.tolist()]
    n = N if padding == "fill" else N - 2
    assert seen == [i for i in range(n) if i not in range(22, 26)]


@pytest.mark.parametrize("load_nbytes", [1, reading.LOAD_NBYTES])
def test_a_batch_without_a_readable_sample_is_left_out(
    damaged, load_nbytes, monkeypatch
):
    monkeypatch.setattr(reading, "LOAD_NBYTES", load_nbytes)
    loader = Loader(damaged, batch_size=4, on_error="skip", return_index=True)
    starts = [int(index[0]) for _, index in loader]
    assert starts == [i for i in range(0, N, 4) if i != 24]
    assert loader.epoch == 1


def test_damage_in_one_array_leaves_out_the_sample_of_all(damaged, place, tmp_path):
    z = zarr.create_array(tmp_path / "labels", shape=(N,), chunks=(10,), dtype="i4")
    z[...] = np.arange(N)
    arrays = {"y": gpushard.open_array(tmp_path / "labels"), "x": damaged}
    loader = Loader(arrays, batch_size=10, on_error="skip")
    seen = [y for batch in loader for y in batch["y"].tolist()]
    assert seen == [i for i in range(N) if i not in range(24, 28)]


class FlakyReads:
    """A store's `read` that fails a number of times."""

    def __init__(self, store, n_failures):
        self._read = store.read
        self.n_failures = n_failures

    def __call__(self, requests):
        if self.n_failures:
            self.n_failures -= 1
            raise gpushard.StoreError("the server is busy")
        return self._read(requests)


@pytest.fixture
def flaky(place, monkeypatch):
    """Makes an array whose store fails the first few times."""

    def make(n_failures):
        array = gpushard.open_array(place)
        flaky = FlakyReads(array.source.store, n_failures)
        monkeypatch.setattr(type(array.source.store), "read", lambda _, r: flaky(r))
        return array

    monkeypatch.setattr(reading, "_PAUSES", (0.01,) * len(reading._PAUSES))
    return make


def test_a_store_that_fails_for_a_while_is_asked_again(flaky):
    loader = Loader(flaky(3), batch_size=8, shuffle=True)
    assert sum(map(len, loader)) == N
    assert loader.stats()["reads_retried"] == 3
    with pytest.raises(gpushard.StoreError, match="busy"):
        list(Loader(flaky(4), batch_size=8, shuffle=True))


def test_a_store_that_fails_for_good_is_an_error(flaky):
    loader = Loader(flaky(10**6), batch_size=8)
    with pytest.raises(gpushard.StoreError, match="busy"):
        list(loader)


@pytest.mark.parametrize("order", [{}, {"shuffle": True}])
def test_a_shard_that_fails_for_good_is_left_out_after_the_pauses_of_one_read(
    place, order, monkeypatch
):
    monkeypatch.setattr(reading, "_PAUSES", (0.01, 0.2))
    shard = place / "c/2/0/0"
    shard.unlink()
    shard.mkdir()  # to be read, it is none of the store's answers
    options = {"batch_size": 8, "on_error": "skip", "return_index": True}
    loader, waited = Loader(gpushard.open_array(place), **order, **options), []
    wait = StopFlag.wait
    monkeypatch.setattr(
        StopFlag, "wait", lambda *given: waited.append(given[1:]) or wait(*given)
    )
    seen = [i for _, index in loader for i in index.tolist()]
    assert sorted(seen) == [i for i in range(N) if i not in range(24, 36)]
    assert loader.stats()["samples_skipped"] == 12
    assert waited.count((0.2,)) == 1


def test_samples_of_a_store_that_recovers_are_not_left_out(flaky):
    # A read and its three repetitions, then a few of the pieces.
    loader = Loader(flaky(11), batch_size=8, shuffle=True, on_error="skip")
    assert sum(map(len, loader)) == N


def test_an_error_of_a_transform_is_raised_as_it_is():
    def transform(batch):
        raise KeyError("mine")

    from loader_data import images

    with pytest.raises(KeyError, match="mine"):
        list(Loader(images(), transform=transform))
    wait_for_no_threads()


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_transform_that_is_out_of_items_does_not_end_the_epoch(
    place, prefetch_factor
):
    def transform(batch):
        return next(iter(())) if batch[0, 0, 0] >= 60 else batch

    options = {"batch_size": 5, "prefetch_factor": prefetch_factor}
    loader = Loader(gpushard.open_array(place), transform=transform, **options)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    assert loader.state_dict() == loader.state_dict() | {"epoch": 0, "step": 2}


@pytest.mark.parametrize("transform", [None, np.copy])
@pytest.mark.parametrize("way", ["close", "break", "end", "forget"])
def test_no_thread_is_left(place, way, transform):
    array = gpushard.open_array(place)
    loader = Loader(array, batch_size=2, transform=transform, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    assert loader_threads()
    if way == "close":
        loader.close()
        assert not loader_threads()
    elif way == "break":
        del batches
    elif way == "end":
        list(batches)
    else:
        del batches, loader
        gc.collect()
    wait_for_no_threads()


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_closing_does_not_wait_for_the_rest_of_a_read(
    place, monkeypatch, prefetch_factor
):
    array = gpushard.open_array(place)
    read, n_reads = type(array.source.store).read, []

    def slow(store, requests):
        n_reads.append(len(requests))
        time.sleep(0.2)
        return read(store, requests)

    monkeypatch.setattr(type(array.source.store), "read", slow)
    options = {"shuffle": True, "prefetch_factor": prefetch_factor}
    loader = Loader(array, batch_size=N, **options)
    batches = iter(loader)
    consumer = threading.Timer(0.1, loader.close)
    consumer.start()
    began = time.perf_counter()
    with pytest.raises(gpushard.OptionError, match="closed"):
        next(batches)
    assert time.perf_counter() - began < 1
    consumer.join()
    wait_for_no_threads()


INTERRUPTED = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
import gpushard
from gpushard import Loader
array = gpushard.open_array(sys.argv[1])
kind = type(array.source.store)
read = kind.read
def slow(store, requests):
    time.sleep(0.3)
    return read(store, requests)
kind.read = slow
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
for epoch in range(1000):
    for batch in Loader(array, batch_size=4, seed=epoch, shuffle=True):
        print("batch", flush=True)
"""


def test_ctrl_c_ends_at_once(place):
    began = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(place)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == -signal.SIGINT
    assert run.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in run.stderr
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize("transform", [None, np.copy])
def test_an_interrupt_at_any_line_leaves_no_thread(place, transform):
    array = gpushard.open_array(place)
    room = os.path.dirname(reading.__file__)

    def epoch(n_lines):
        """Read all batches; interrupted at that line of the loader's own."""
        seen = 0

        def trace(frame, event, arg):
            nonlocal seen
            code = frame.f_code
            if not code.co_filename.startswith(room) or code.co_name == "__del__":
                return None
            seen += event == "line"
            if seen == n_lines:
                seen += 1
                raise KeyboardInterrupt
            return trace

        traced = sys.gettrace()
        try:
            loader = Loader(
                array, batch_size=32, prefetch_factor=1, transform=transform
            )
            sys.settrace(trace)
            with loader:
                for _ in loader:
                    pass
        except KeyboardInterrupt:
            pass
        else:
            assert n_lines < 0 or seen < n_lines, "the interrupt was lost"
        finally:
            sys.settrace(traced)
        return seen

    n_lines = epoch(-1)
    assert n_lines > 100
    for n in range(1, n_lines, 3):
        epoch(n)
    gc.collect()
    wait_for_no_threads()


def test_no_thread_is_left_of_an_epoch_that_ended(place):
    ended = []
    for _ in range(20):
        assert sum(map(len, Loader(gpushard.open_array(place), batch_size=64))) == N
        ended.append(not loader_threads())
    assert all(ended)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_iteration_does_not_go_on_in_a_forked_process(place, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 1)
    loader = Loader(gpushard.open_array(place), batch_size=4)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        status = errno.EINVAL
        try:
            list(batches)
        except gpushard.UnsupportedError:
            # A new one does.
            status = 0 if sum(map(len, loader)) == N else errno.EIO
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(batches)) == -(-N // 4) - 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_does_not_wait_for_a_long_task(place, kind, monkeypatch):
    """Such as the first compilation of the loops, of some ten seconds."""
    is_slow, goes_on, plan = threading.Event(), threading.Event(), Field.read

    def slow(field, origins, memory):
        if n_reads.pop():
            is_slow.set()
            goes_on.wait(30)
        return plan(field, origins, memory)

    n_reads = [True, False]
    monkeypatch.setattr(Field, "read", slow)
    monkeypatch.setattr(reading, "LOAD_NBYTES", 1)

    def interrupted():
        with Loader(gpushard.open_array(place)) as loader:
            for _ in loader:
                is_slow.wait(30)
                raise kind

    began = time.perf_counter()
    with pytest.raises(kind):
        interrupted()
    assert time.perf_counter() - began < 5
    assert loader_threads()
    goes_on.set()
    wait_for_no_threads()
