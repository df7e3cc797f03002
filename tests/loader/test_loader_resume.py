"""A loader that is stopped anywhere goes on with the very next batch."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from gpushard import Loader, Mix, OptionError
from gpushard.loader.state import Standing, parsed_standing
from loader_data import IMAGES, LABELS, N, handed_out, images, labels, stored

A = images()
ORDERS = [
    {},
    {"shuffle": True},
    {"shuffle": True, "block": "shard", "buffer_blocks": 2},
    {"shuffle": True, "block": 5, "num_samples": 60},
    {"replacement": True, "weights": np.arange(N)},
    {"sampler": lambda epoch: np.arange(N)[::-1] - 0 * epoch},
]


def made(**options):
    return Loader(A, return_index=True, **{"batch_size": 8, "seed": 3} | options)


def advanced(n_batches, epoch=0, **options):
    """Loader that has handed out some batches of an epoch."""
    loader = made(**options)
    loader.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(n_batches):
        next(batches)
    return loader, batches


def stored_and_read(state):
    text = json.dumps(state)
    assert len(text) < 600
    return json.loads(text)


@given(
    order=st.sampled_from(ORDERS),
    n_batches=st.integers(0, 7),
    epoch=st.integers(0, 3),
    ahead=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_the_next_batch_comes_next(order, n_batches, epoch, ahead):
    whole = made(**order)
    whole.set_epoch(epoch)
    expected = [*handed_out(whole)[n_batches:], *handed_out(whole)]
    loader, batches = advanced(n_batches, epoch, prefetch_factor=ahead[0], **order)
    state = stored_and_read(loader.state_dict())
    loader.close()
    del batches
    resumed = made(prefetch_factor=ahead[1], **order)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [*handed_out(resumed), *handed_out(resumed)] == expected


@given(
    worlds=st.tuples(st.sampled_from([1, 2, 3, 6]), st.sampled_from([1, 2, 3, 6])),
    n_steps=st.integers(0, 5),
    order=st.sampled_from(ORDERS[:3]),
)
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(
    worlds, n_steps, order
):
    before, after = worlds
    global_batch = 18
    seen, state = [], None
    for rank in range(before):
        options = {"rank": rank, "world_size": before, "uneven": "allow", **order}
        loader, batches = advanced(0, batch_size=global_batch // before, **options)
        seen += [i for _ in range(n_steps) for i in next(batches)[1].tolist()]
        assert state in (None, loader.state_dict())
        state = loader.state_dict()
        loader.close()
    for rank in range(after):
        options = {"rank": rank, "world_size": after, "uneven": "allow", **order}
        loader = made(batch_size=global_batch // after, **options)
        loader.load_state_dict(state)
        seen += [i for batch in handed_out(loader) for i in batch]
    assert sorted(seen) == list(range(N))


def test_batches_read_ahead_are_not_counted():
    loader, batches = advanced(3, prefetch_factor=4)
    assert loader.state_dict()["step"] == 3
    next(batches)
    assert loader.state_dict()["step"] == 4
    loader.close()


def test_breaking_off_begins_the_epoch_again_but_a_state_goes_on():
    loader, batches = advanced(3)
    state = loader.state_dict()
    del batches
    assert handed_out(loader)[0] == list(range(8))
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert handed_out(loader)[0] == list(range(24, 32))
    assert handed_out(loader)[0] != list(range(24, 32))
    loader.load_state_dict(state)
    next(iter(loader))
    assert handed_out(loader)[0] == list(range(8))
    loader.load_state_dict(state)
    loader.set_epoch(5)
    assert handed_out(loader)[0] == list(range(8))
    assert loader.epoch == 6


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_moving_a_loader_ends_the_iteration_that_runs(transform):
    loader, batches = advanced(3, shuffle=True, transform=transform)
    loader.set_epoch(0)
    next(batches)
    state = loader.state_dict()
    loader.set_epoch(7)
    with pytest.raises(OptionError, match="moved"):
        next(batches)
    assert loader.epoch == 7
    assert handed_out(loader) == handed_out(advanced(0, 7, shuffle=True)[0])
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(state)
    with pytest.raises(OptionError, match="moved"):
        next(batches)
    assert loader.state_dict() == state
    assert handed_out(loader) == handed_out(made(shuffle=True))[4:]


def test_a_batch_that_is_left_out_is_counted(tmp_path):
    z = zarr.create_array(
        tmp_path / "a",
        shape=(40,),
        chunks=(4,),
        dtype="i4",
        compressors=zarr.codecs.ZstdCodec(checksum=True),
    )
    z[...] = np.arange(40)
    (tmp_path / "a/c/1").write_bytes(b"no frame")
    options = {"batch_size": 4, "on_error": "skip", "return_index": True}
    loader = Loader(gpushard.open_array(tmp_path / "a"), **options)
    batches = iter(loader)
    assert [int(next(batches)[1][0]) for _ in range(3)] == [0, 8, 12]
    assert loader.state_dict()["step"] == 4
    resumed = Loader(gpushard.open_array(tmp_path / "a"), **options)
    resumed.load_state_dict(loader.state_dict())
    assert handed_out(resumed)[0] == list(range(16, 20))
    loader.close()


def test_a_state_of_the_end_goes_on_with_the_next_epoch():
    loader = made(shuffle=True)
    handed_out(loader)
    resumed = made(shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    assert handed_out(resumed) == handed_out(loader)


def test_eight_blocks_are_mixed_where_nobody_says_how_many():
    options = {"shuffle": True, "block": "chunk"}
    state = Loader(images(), **options).state_dict()
    Loader(images(), buffer_blocks=8, **options).load_state_dict(state)
    with pytest.raises(OptionError, match="buffer_blocks"):
        Loader(images(), buffer_blocks=7, **options).load_state_dict(state)


SHUFFLED = {"shuffle": True, "block": "chunk", "buffer_blocks": 2}
CHANGES = [
    ({"seed": 4}, "seed"),
    ({"batch_size": 9}, "global_batch"),
    ({"block": 5}, "block"),
    ({"buffer_blocks": 3}, "buffer_blocks"),
    ({"block": None, "buffer_blocks": None}, "block"),
    ({"shuffle": False, "block": None, "buffer_blocks": None}, "shuffle"),
    ({"num_samples": 50}, "num_samples"),
    ({"window": 2, "stride": 1}, "windows"),
    ({"lead": 1}, "arrays array"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_state_of_another_order_is_refused_by_name(change, named):
    loader, _ = advanced(2, **SHUFFLED)
    with pytest.raises(OptionError, match=named) as caught:
        made(**SHUFFLED | change).load_state_dict(loader.state_dict())
    assert named in caught.value.got
    if named in ("seed", "global_batch", "buffer_blocks", "num_samples"):
        assert set(caught.value.got) == {named}


def test_a_state_of_another_array_is_refused_by_name():
    state = Loader({"x": A, "y": labels()}).state_dict()
    other = Loader({"x": A, "y": stored(LABELS.astype("i8"), (10,))})
    with pytest.raises(OptionError, match="arrays y"):
        other.load_state_dict(state)
    longer = Loader(stored(np.concatenate([IMAGES, IMAGES]), (4, 2, 3)))
    with pytest.raises(OptionError, match="n_samples, arrays array"):
        longer.load_state_dict(Loader(A).state_dict())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"window": 3, "stride": 3}, {"window": 2, "stride": 3}),
        ({"window": 3, "stride": 2, "num_samples": 9}, {"window": 3, "stride": 2}),
        ({"window": 3, "stride": 100}, {"window": 3, "stride": 99}),
        ({"lead": {"x": 1}}, {"lead": {"y": 1}}),
        ({"window": 3, "lead": {"x": 1}}, {"window": 3, "lead": {"y": 1}}),
        ({"window": 3, "padding": "shift"}, {"window": 3, "padding": "fill"}),
    ],
)
def test_a_state_of_samples_that_lie_elsewhere_is_refused(one, other):
    arrays = {"x": A, "y": A}
    state = Loader(arrays, **one).state_dict()
    Loader(arrays, **one).load_state_dict(state)
    with pytest.raises(OptionError, match="differs"):
        Loader(arrays, **other).load_state_dict(state)


def test_a_state_is_json_whatever_numbers_were_given():
    counts = {name: np.int64(2) for name in ("batch_size", "num_samples", "seed")}
    ranks = {"rank": np.int32(1), "world_size": np.int32(2)}
    loader = made(**counts, **ranks, shuffle=True, block=np.int16(3))
    loader.load_state_dict(stored_and_read(loader.state_dict()))


def test_a_state_of_another_version_or_beyond_the_epoch_is_refused():
    state = made().state_dict()
    with pytest.raises(OptionError, match="version"):
        made().load_state_dict({**state, "version": 2})
    made().load_state_dict({**state, "step": 13})
    with pytest.raises(OptionError, match="number from 0 to 13, got 14"):
        made().load_state_dict({**state, "step": 14})


def test_another_sampler_or_other_weights_are_refused():
    for name, (first, second) in {
        "sampler": ({"sampler": [1, 2]}, {"sampler": [2, 1]}),
        "weights": (
            {"weights": np.ones(N), "replacement": True},
            {"weights": np.arange(N), "replacement": True},
        ),
    }.items():
        with pytest.raises(OptionError, match=name):
            made(**first).load_state_dict(made(**second).state_dict())


@pytest.mark.parametrize("name", ["epoch", "step"])
@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
def test_an_epoch_or_a_step_that_is_no_number_is_refused(name, number):
    state = {"version": 1, "epoch": 2, "step": 3}
    assert parsed_standing(state) == Standing(2, 3)
    with pytest.raises(OptionError, match=f"impossible {name}: expected a whole numb"):
        parsed_standing({**state, name: number})


@pytest.mark.parametrize("name", ["version", "global_batch", "order", "arrays"])
def test_arrays_of_numpy_in_a_state_are_refused_by_name(name):
    loader = made()
    state = {**loader.state_dict(), name: np.array([1, 2])}
    with pytest.raises(OptionError, match=r"differs in|another version"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("step", "n_steps", "epoch"), [(0, 0, 4), (0, 1, 4), (1, 2, 4), (1, 1, 5)]
)
def test_only_an_epoch_of_which_batches_were_handed_out_can_be_over(
    step, n_steps, epoch
):
    assert Standing(4, step).restarted(lambda: n_steps) == Standing(epoch, 0)


@pytest.mark.parametrize("state", [None, [], {}, {"version": 99}, {"version": 1}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(OptionError, match="state"):
        made().load_state_dict(state)


def taken(batches, n):
    """Samples of the first `n` batches, and not one more asked for."""
    return [index.tolist() for _, index in itertools.islice(batches, n)]


def mixed():
    return Mix([made(shuffle=True), made(shuffle=True, seed=4)], stop="all")


@pytest.mark.parametrize("make", [lambda: made(shuffle=True), mixed])
def test_taking_as_many_batches_as_there_are_ends_the_epoch(make):
    """As Lightning does, which counts batches."""
    whole, counted = make(), make()
    for epoch in range(3):
        assert counted.epoch == max(0, epoch - 1)
        assert taken(counted, len(counted)) == handed_out(whole)
    assert counted.epoch == 2
    assert taken(counted, len(counted) - 1) == handed_out(whole)[:-1]
    state = counted.state_dict()
    assert taken(counted, 2) == taken(counted, 2)
    counted.load_state_dict(state)
    assert len(handed_out(counted)) == 1
    counted.close()


@pytest.mark.parametrize("make", [lambda: made(shuffle=True), mixed])
def test_an_epoch_that_is_asked_for_again_comes_again(make):
    loader = make()
    first = taken(loader, len(loader))
    loader.set_epoch(0)
    assert taken(loader, len(loader)) == first
    assert taken(loader, len(loader)) != first
    loader.close()


def test_a_state_of_the_last_batch_has_nothing_left_and_then_the_next_epoch():
    loader = made(shuffle=True)
    taken(loader, len(loader))
    resumed = made(shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert handed_out(resumed) == []
    assert handed_out(resumed) == handed_out(loader)
