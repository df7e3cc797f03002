"""A loader that reads on into the next epoch gives what it gives without."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from itertools import islice

import numpy as np
import pytest

from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from forked import answers_in_a_fork
from gpushard import Loader, Mix, OptionError
from gpushard.errors import StoreError
from gpushard.loader import reading
from gpushard.loader.fields import Field
from loader_data import ORDERS, N, handed_out, images, labels

READ_ON = [name for name in ORDERS if "sampler" not in ORDERS[name]]


@pytest.fixture(autouse=True)
def _small_loads(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 200)


@pytest.fixture
def reads(monkeypatch):
    """Samples of each read so far: their number is the number of loads."""
    read, begun = Field.read, []

    def counted(field, origins, memory):
        begun.append(origins[:, 0].tolist())
        return read(field, origins, memory)

    monkeypatch.setattr(Field, "read", counted)
    return begun


def made(**options):
    how = {"batch_size": 8, "return_index": True, "seed": 3, "epochs": 3}
    return Loader(images(), **how | options)


def n_of_loads(reads):
    """Number of reads once the threads have no room for another one."""
    n = -1
    while n < len(reads):
        n = len(reads)
        time.sleep(0.1)
    return n


def threads():
    return [t for t in threading.enumerate() if t.name == "gpushard-loader"]


def assert_no_thread_is_left():
    end = time.monotonic() + 10
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads()


@pytest.mark.parametrize(
    ("order", "ahead", "transform"),
    [
        *((order, 1, lambda batch: batch) for order in READ_ON),
        *((order, ahead, None) for order in ("global", "chunks") for ahead in (0, 9)),
    ],
)
def test_batches_of_all_epochs_are_the_same(order, ahead, transform):
    how = {**ORDERS[order], "prefetch_factor": ahead, "transform": transform}
    with made(**how) as loader, made(**how, epochs=None) as plain:
        for _ in range(4):  # one more than it was told
            assert handed_out(loader) == handed_out(plain)
            assert loader.state_dict() == plain.state_dict()


@pytest.mark.parametrize("uneven", ["drop", "pad", "allow"])
@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_read_on_into_their_own_part(uneven, rank):
    how = {"shuffle": True, "uneven": uneven, "rank": rank, "world_size": 3}
    with made(**how) as loader, made(**how, epochs=None) as plain:
        for _ in range(3):
            assert handed_out(loader) == handed_out(plain)


def test_the_next_epoch_is_read_before_it_is_asked_for(reads):
    with made(shuffle=True) as loader, made(shuffle=True, epochs=None) as plain:
        handed_out(loader)
        n_of_loads(reads)
        assert sum(map(len, reads)) > N
        reads_ahead = len(reads)
        batches = iter(loader)
        first = next(batches)
        assert len(reads) <= reads_ahead + 1  # for which there is room now
        handed_out(plain)
        assert first[1].tolist() == next(iter(plain))[1].tolist()


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_is_held_at_the_end_of_an_epoch_than_within(ahead, reads):
    with made(prefetch_factor=ahead, epochs=None) as loader:
        n_loads = len(handed_out(loader)) and len(reads)
    reads.clear()
    with made(prefetch_factor=ahead) as loader:
        handed_out(loader)
        # Of the next epoch: as many as wait, and one that is planned.
        assert n_of_loads(reads) - n_loads == ahead + 1


def test_nothing_is_read_after_the_last_epoch(reads):
    loader = made(epochs=2)
    for _ in range(2):
        handed_out(loader)
    assert_no_thread_is_left()
    assert sum(map(len, reads)) == 2 * N
    handed_out(loader)
    assert sum(map(len, reads)) == 3 * N


def test_only_a_first_read_that_is_waited_for_is_small(reads):
    with made(epochs=2) as loader:
        first, second = handed_out(loader), handed_out(loader)
    assert first == second
    begin = [i for i, samples in enumerate(reads) if samples[0] == 0]
    sizes = [len(samples) for samples in reads]
    assert sizes[0] < max(sizes[: begin[1]])
    assert sizes[begin[1]] == max(sizes)


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
@pytest.mark.parametrize("keeps", [True, False])
def test_who_counts_batches_gets_the_next_epoch_too(transform, keeps, reads):
    how = {"shuffle": True, "transform": transform}
    with made(**how) as loader, made(**how, epochs=None) as plain:
        kept = []  # as a framework keeps an iteration
        for epoch in range(3):
            loader.set_epoch(epoch)
            batches = iter(loader)
            kept += [batches] * keeps
            got = [list(index) for _, index in islice(batches, len(loader))]
            del batches
            n_loads = n_of_loads(reads)
            assert (sum(map(len, reads)) > N * (epoch + 1)) == (epoch < 2)
            assert got == handed_out(plain)
            del reads[n_loads:]
        assert loader.epoch == 2
        assert sum(map(len, reads)) == 3 * N  # nothing was read in vain


def test_an_iteration_whose_next_epoch_has_begun_has_ended():
    with made() as loader:
        early = iter(loader)
        for _ in range(len(loader)):
            next(early)
        assert next(iter(loader))[1].tolist() == list(range(8))
        assert loader.epoch == 1
        with pytest.raises(OptionError, match="has ended"):
            next(early)


@pytest.mark.parametrize("wanted", [0, 1, 2, 7])
@pytest.mark.parametrize("counts", [False, True])
def test_another_epoch_can_be_set_between_epochs(wanted, counts):
    with made(shuffle=True) as loader, made(shuffle=True, epochs=None) as plain:
        list(islice(loader, len(loader) if counts else None))
        loader.set_epoch(wanted)
        plain.set_epoch(wanted)
        for _ in range(2):
            assert handed_out(loader) == handed_out(plain)


@pytest.mark.parametrize("step", [0, 1, 5, 13])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_state_can_be_loaded_between_epochs(step, epoch):
    with made(shuffle=True) as loader, made(shuffle=True, epochs=None) as plain:
        handed_out(loader)
        state = {**plain.state_dict(), "epoch": epoch, "step": step}
        loader.load_state_dict(state)
        plain.load_state_dict(state)
        for _ in range(3):
            assert handed_out(loader) == handed_out(plain)


@pytest.mark.parametrize("n", [1, 11, 12])
def test_after_a_break_an_epoch_begins_again(n):
    with made(shuffle=True) as loader, made(shuffle=True, epochs=None) as plain:
        list(islice(loader, n))
        for _ in range(3):
            assert handed_out(loader) == handed_out(plain)


def test_a_loader_that_is_closed_between_epochs_begins_anew():
    loader = made(shuffle=True)
    first = handed_out(loader)
    loader.close()
    assert_no_thread_is_left()
    assert loader._ahead is None
    second = handed_out(loader)
    loader.close()
    loader.set_epoch(0)
    assert [handed_out(loader), handed_out(loader)] == [first, second]
    loader.close()


@pytest.mark.parametrize("epochs", [None, 3])
def test_closing_after_a_break_waits_for_the_threads(epochs, monkeypatch):
    at = reading.Reader._finish

    def slow(reader, begun):
        time.sleep(0.2)
        return at(reader, begun)

    monkeypatch.setattr(reading.Reader, "_finish", slow)
    with made(epochs=epochs) as loader:
        list(islice(loader, 1))
    assert not threads()


def test_the_threads_of_a_loader_that_is_dropped_end():
    loader = made()
    handed_out(loader)
    assert threads()
    del loader
    gc.collect()
    assert_no_thread_is_left()


def test_an_error_of_the_next_epoch_is_raised_there(monkeypatch):
    read, n_reads = reading.Reader._finish, []

    def failing(reader, begun):
        n_reads.append(begun.start)
        if n_reads.count(0) == 2:
            raise StoreError("the second epoch fails")
        return read(reader, begun)

    monkeypatch.setattr(reading.Reader, "_finish", failing)
    monkeypatch.setattr(reading, "_PAUSES", ())
    with made() as loader:
        assert len(handed_out(loader)) == 13
        n_of_loads(n_reads)
        with pytest.raises(StoreError, match="second epoch"):
            next(iter(loader))
        assert loader.epoch == 1
        assert len(handed_out(loader)) == 13


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_reads_the_next_epoch_itself():
    with made(shuffle=True) as loader, made(shuffle=True, epochs=None) as plain:
        handed_out(loader)
        _, second = handed_out(plain), handed_out(plain)
        assert answers_in_a_fork(lambda: handed_out(loader) == second)
        assert handed_out(loader) == second


def test_a_copy_of_a_loader_reads_on_itself():
    loader = made(shuffle=True)
    handed_out(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert handed_out(copy) == handed_out(loader)
    assert copy.epoch == loader.epoch == 2


@pytest.mark.usefixtures("device_begins_at_once")
@pytest.mark.parametrize("order", ["global", "chunks"])
def test_a_device_reads_on_too(order):
    device = EmulatedDevice(Kernels(), load_standin(), seed=3)
    how = {**ORDERS[order], "device": device}
    with made(**how) as loader, made(**how, epochs=None) as plain:
        for _ in range(3):
            for got, wanted in zip(loader, plain, strict=True):
                assert np.array_equal(got[0].get(), wanted[0].get())
        # In vain: it is dropped while its reads are under way.
        loader.set_epoch(0)
        list(loader)
        loader.set_epoch(2)
    assert_no_thread_is_left()
    assert device.is_idle or not device.drain()


def test_epochs_without_effect_are_refused():
    with pytest.raises(OptionError, match="no effect with sampler="):
        made(sampler=[1, 2])
    with pytest.raises(OptionError, match="epochs"):
        made(epochs=0)
    with pytest.raises(OptionError, match="no effect in a mix"):
        Mix([Loader(labels()), Loader(labels(), epochs=2)])


def test_an_array_without_samples_has_epochs_without_batches():
    loader = made(num_samples=0, epochs=4, prefetch_factor=2)
    assert [handed_out(loader) for _ in range(3)] == [[], [], []]
    assert loader.epoch == 3
