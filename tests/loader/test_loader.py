"""A loader's batches are the rows of its arrays, in the order that its index says."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from itertools import chain

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader, OptionError
from gpushard.loader.fields import stored_axis
from gpushard.loader.memory import Memory
from gpushard.loader.prefetch import Prefetched, WaitStats
from gpushard.threads.stop_flag import StopFlag
from loader_data import IMAGES, LABELS, ORDERS, N, handed_out, images, labels, stored


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_batches_are_the_samples_that_the_index_names(order, prefetch_factor):
    arrays = {"images": images(), "labels": labels()}
    options = ORDERS[order] | {"prefetch_factor": prefetch_factor}
    with Loader(arrays, batch_size=8, return_index=True, **options) as loader:
        for epoch in range(2):
            n = len(loader)
            batches = list(loader)
            assert len(batches) == n
            assert loader.epoch == epoch + 1
            for batch in batches:
                assert list(batch) == ["images", "labels", "index"]
                assert batch["index"].dtype == np.int64
                assert np.array_equal(batch["images"], IMAGES[batch["index"]])
                assert np.array_equal(batch["labels"], LABELS[batch["index"]])


@pytest.mark.parametrize("order", ["sequential", "global", "shards", "chunks", "rows"])
def test_an_epoch_has_every_sample_once(order):
    with Loader(images(), batch_size=8, return_index=True, **ORDERS[order]) as loader:
        first, second = handed_out(loader), handed_out(loader)
    assert sorted(chain.from_iterable(first)) == list(range(N))
    assert [len(batch) for batch in first] == [8] * (N // 8) + [N % 8]
    assert (first == second) == (order == "sequential")


def test_a_sampler_that_has_epochs_is_told_each_before_it_is_asked():
    class Sampler(list):
        def set_epoch(self, epoch):
            self[:] = [epoch, epoch + 2]

    loader = Loader(images(), sampler=Sampler(), batch_size=2, return_index=True)
    assert [handed_out(loader) for _ in range(3)] == [[[0, 2]], [[1, 3]], [[2, 4]]]


def test_small_loads_give_the_same_batches(monkeypatch):
    """Every batch straddles loads of 3 to 5 samples then."""
    whole = list(Loader(images(), batch_size=8, shuffle=True, block=5))
    monkeypatch.setattr("gpushard.loader.reading.LOAD_NBYTES", 36)
    cut = list(Loader(images(), batch_size=8, shuffle=True, block=5, buffer_blocks=1))
    mixed = list(Loader(images(), batch_size=8, shuffle=True, block=5))
    assert all(np.array_equal(a, b) for a, b in zip(whole, mixed, strict=True))
    assert sorted(np.concatenate(cut)[:, 0, 0]) == sorted(IMAGES[:, 0, 0])


def test_batches_have_the_form_of_what_was_given():
    one = next(iter(Loader(images(), batch_size=2)))
    assert np.array_equal(one, IMAGES[:2])
    two = next(iter(Loader((images(), labels()), batch_size=2)))
    assert isinstance(two, tuple)
    assert np.array_equal(two[1], LABELS[:2])
    batch, index = next(iter(Loader(images(), batch_size=2, return_index=True)))
    assert np.array_equal(batch, IMAGES[index])


def test_several_arrays_are_loaded_as_one():
    parts = [stored(IMAGES[:40], (4, 2, 3)), stored(IMAGES[40:], (5, 2, 3), (15, 2, 3))]
    both = gpushard.concat(parts)
    for block in ("chunk", "shard", None):
        loader = Loader(
            both, batch_size=9, shuffle=True, block=block, return_index=True
        )
        for batch, index in loader:
            assert np.array_equal(batch, IMAGES[index])


def test_arrays_side_by_side_are_mixed_by_the_shards_of_the_first():
    sides = [stored(IMAGES, (4, 2, 2), (12, 2, 4)), stored(IMAGES, (5, 2, 3))]
    a = gpushard.concat(sides, axis=2)
    order = {"shuffle": True, "block": "shard", "buffer_blocks": 1}
    ((batch, index),) = Loader(a, batch_size=N, return_index=True, **order)
    assert sorted(index) == list(range(N))
    assert np.array_equal(batch, np.concatenate([IMAGES, IMAGES], axis=2)[index])
    assert np.count_nonzero(np.diff(index // 12)) == N // 12
    axis = stored_axis(a, "chunk")
    assert (axis.extent, axis.cell) == (N, 4)


def test_a_last_batch_that_is_not_full_can_be_left_out():
    loader = Loader(images(), batch_size=10, drop_last=True)
    assert len(loader) == 10
    assert [len(batch) for batch in loader] == [10] * 10


def test_elements_are_cast_and_scaled():
    arrays = {"x": images(), "y": labels()}
    options = {"batch_size": 50, "shuffle": True, "return_index": True}
    loader = Loader(arrays, scale={"x": 0.5}, offset={"x": 1}, **options)
    for batch in loader:
        assert batch["x"].dtype == np.float32
        assert np.array_equal(batch["x"], IMAGES[batch["index"]] * 0.5 + 1)
        assert np.array_equal(batch["y"], LABELS[batch["index"]])
    wide = next(iter(Loader(arrays, dtype={"y": "f8"}, scale=2, batch_size=3)))
    assert wide["x"].dtype == np.float32
    assert wide["y"].dtype == np.float64
    assert wide["y"].tolist() == [0, 20, 40]


def test_half_precision_is_computed_in_a_wider_type():
    values = np.array([60_000, 65_000], "u2")
    half = Loader(stored(values, (1,)), dtype="f2", scale=1e-3, batch_size=2)
    assert np.array_equal(
        next(iter(half)), (values.astype("f4") * 1e-3).astype(np.float16)
    )
    rounded = Loader(stored(values, (1,)), dtype="i2", scale=1e-4, batch_size=2)
    assert next(iter(rounded)).tolist() == [6, 6]


def test_a_transform_makes_what_is_handed_out():
    seen = []

    def transform(batch):
        seen.append(threading.current_thread().name)
        return batch[0].sum(), batch[1]

    loader = Loader(images(), batch_size=5, return_index=True, transform=transform)
    for total, index in loader:
        assert total == IMAGES[index].sum()
    assert set(seen) == {"gpushard-loader"}


def test_what_a_batch_refers_to_is_not_written_again():
    loader = Loader(images(), batch_size=4, shuffle=True, return_index=True)
    kept = [(batch[1:], index[1:].copy()) for _ in range(3) for batch, index in loader]
    gc.collect()
    for batch, index in kept:
        assert np.array_equal(batch, IMAGES[index])


def test_memory_is_used_again_when_batches_are_let_go(monkeypatch):
    monkeypatch.setattr("gpushard.loader.reading.LOAD_NBYTES", 4 * 12)
    addresses = set()
    with Loader(images(), batch_size=4) as loader:
        for _ in range(3):
            for batch in loader:
                addresses.add(batch.ctypes.data)
                del batch
    # 26 batches of an epoch, in no more pieces of memory than are held at a time.
    assert len(addresses) <= 2 * (2 + 3)


def block_of(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return array.loan.block


def test_the_very_memory_is_given_again():
    memory, dtype = Memory(2), np.dtype("u1")
    array = memory.take((4096,), dtype)
    block = block_of(array)
    assert block_of(memory.take((4096,), dtype)) is not block
    del array
    assert any(block_of(memory.take((4096,), dtype)) is block for _ in range(2))


def test_no_more_is_made_ahead_than_the_depth():
    n_made, ahead = 0, []

    def items():
        nonlocal n_made
        while True:
            n_made += 1
            ahead.append(n_made - n_taken)
            yield n_made

    n_taken = 0
    stage = Prefetched(items(), 2, StopFlag(), WaitStats())
    stage.start()
    # Counted before, or the item that it makes room for would seem one too many.
    for n_taken in range(1, 21):  # noqa: B007 - what is made looks at it
        next(stage)
        time.sleep(0.002)
    stage.close()
    stage.join(10)
    assert max(ahead) <= 2


def test_memory_comes_back_when_the_last_view_is_gone():
    memory, dtype = Memory(2), np.dtype("u1")
    first = memory.take((4096,), dtype)
    place = first.ctypes.data
    view = first[5:]
    del first
    assert memory.take((4096,), dtype).ctypes.data != place
    del view
    other = np.empty(4096, "u1")
    assert other.ctypes.data != place
    held = [memory.take((4, 1024), dtype) for _ in range(2)]
    assert place in {array.ctypes.data for array in held}
    del held
    # Of memory far larger than what is wanted most would lie idle.
    small = memory.take((8,), dtype)
    assert small.ctypes.data != place
    assert small.base is not None


def test_each_inner_chunk_is_decoded_once_where_blocks_are_mixed():
    loader = Loader(images(), batch_size=7, shuffle=True, block="shard")
    list(loader)
    stats = loader.stats()
    # Along the other axes an inner chunk of 2 x 2 reaches beyond the 3 columns.
    assert stats["read_amplification"] == pytest.approx(104 / N * 4 / 3)
    assert stats["samples"] == N
    assert stats["batches"] == -(-N // 7)
    assert stats["bytes"] == IMAGES.nbytes
    assert stats["stored_bytes_read"] > 0
    assert 0 <= stats["queue_occupancy"] <= 1
    assert stats["samples_per_second"] > 0


@pytest.mark.usefixtures("settled")
def test_shard_indexes_that_are_still_known_are_told(tmp_path):
    z = zarr.create_array(
        tmp_path, shape=IMAGES.shape, chunks=(4, 2, 3), shards=(12, 2, 3), dtype="u2"
    )
    z[...] = IMAGES
    loader = Loader(gpushard.open_array(tmp_path), batch_size=N)
    list(loader)
    first = loader.stats()
    assert first["index_requests"] == -(-N // 12)
    assert first["index_cache_hits"] == 0
    list(loader)
    second = loader.stats()
    assert second["index_requests"] == first["index_requests"]
    assert second["index_cache_hits"] == -(-N // 12)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch(world_size):
    seen = []
    for rank in range(world_size):
        loader = Loader(
            images(),
            batch_size=4,
            shuffle=True,
            block="chunk",
            rank=rank,
            world_size=world_size,
            uneven="allow",
            return_index=True,
        )
        for batch, index in loader:
            assert np.array_equal(batch, IMAGES[index])
            seen += index.tolist()
    assert sorted(seen) == list(range(N))


def test_an_empty_array_gives_no_batches():
    loader = Loader(stored(IMAGES[:0], (4, 2, 3)), shuffle=True, block="chunk")
    assert len(loader) == 0
    assert list(loader) == []


def test_a_loader_goes_to_another_process(tmp_path):
    import zarr

    z = zarr.create_array(
        tmp_path / "a", shape=IMAGES.shape, chunks=(4, 2, 3), dtype="u2"
    )
    z[...] = IMAGES
    loader = Loader(gpushard.open_array(tmp_path / "a"), batch_size=4, shuffle=True)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == state
    assert "103 samples" in repr(copy)
    loader.close()


def test_arrays_that_do_not_belong_together_are_refused():
    with pytest.raises(OptionError, match="103, 102"):
        Loader((images(), stored(LABELS[1:], (10,))))
    with pytest.raises(OptionError, match="at least one"):
        Loader({})
    with pytest.raises(OptionError, match="ndarray"):
        Loader(IMAGES)
    with pytest.raises(OptionError, match="no axes"):
        Loader(stored(np.array(1.0), ()))


def test_no_array_of_a_dict_is_lost():
    with pytest.raises(OptionError, match="'index'"):
        Loader({"index": images()}, return_index=True)
    assert list(next(iter(Loader({"index": images()})))) == ["index"]
    with pytest.raises(OptionError, match="must be strings"):
        Loader({1: images(), "1": images()})


def test_a_group_is_loaded_by_the_names_of_its_arrays(tmp_path):
    group = zarr.create_group(tmp_path)
    for name in ("x", "y"):
        group.create_array(name, shape=(3,), dtype="i4")[...] = np.arange(3)
    (batch,) = Loader(gpushard.open_group(tmp_path), batch_size=3)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "x": [0, 1, 2],
        "y": [0, 1, 2],
    }


def test_numbers_that_numpy_has_no_kind_for_are_cast_and_scaled():
    bfloat16 = pytest.importorskip("ml_dtypes", reason="it is optional").bfloat16
    (batch,) = Loader(labels(), batch_size=N, dtype=bfloat16, scale=0.5)
    assert batch.dtype == bfloat16
    assert np.array_equal(batch, (LABELS * np.float32(0.5)).astype(bfloat16))


def test_imaginary_parts_are_not_dropped():
    numbers = stored(np.arange(4) * 1j, (2,))
    with pytest.raises(OptionError, match="imaginary"):
        Loader(numbers, dtype="f4")


def test_scaled_integers_are_rounded():
    values = stored(np.array([1, 2, 3, 5], "i4"), (2,))
    (batch,) = Loader(values, batch_size=4, dtype="i2", scale=0.9)
    assert batch.tolist() == [1, 2, 3, 4]
    assert batch.dtype == "i2"


def test_what_lay_ready_and_how_long_was_waited_is_counted():
    waits = WaitStats()
    stage = Prefetched(iter("abc"), 4, StopFlag(), waits)
    stage.start()
    stage.join(10)
    assert next(stage) == "a"
    assert (waits.n_looks, waits.n_found) == (1, 4)  # the end lies there, too
    gate = threading.Event()
    waits = WaitStats()
    stage = Prefetched(iter(gate.wait, None), 4, StopFlag(), waits)
    stage.start()
    threading.Timer(0.2, gate.set).start()
    assert next(stage)
    assert waits.n_found == 0
    assert waits.seconds > 0.1
    stage.close()


def test_only_one_iteration_runs_at_a_time():
    loader = Loader(images(), batch_size=4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert np.array_equal(next(second), IMAGES[:4])
    with pytest.raises(OptionError, match="ended"):
        list(first)
    assert loader.epoch == 0
    assert np.array_equal(next(second), IMAGES[4:8])
    loader.close()
    with pytest.raises(OptionError, match="closed"):
        next(second)
