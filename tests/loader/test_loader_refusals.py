"""Arguments of a loader that make no sense are refused in one sentence."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpushard import Loader, OptionError, UnsupportedError
from loader_data import IMAGES, N, images, stored
from zarr_oracle import quiet_zarr

A = images()
MANY = 2**70
WRONG = [
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": 2.5}, "batch_size"),
    ({"prefetch_factor": -1}, "prefetch_factor"),
    ({"seed": -1}, "seed"),
    ({"uneven": "cut"}, "uneven"),
    ({"to": "tensorflow"}, "to="),
    ({"on_error": "ignore"}, "on_error"),
    ({"num_threads": -2}, "num_threads"),
    ({"block": "row", "shuffle": True}, "block"),
    ({"block": "chunk"}, "shuffle"),
    ({"weights": [1] * N}, "no effect without replacement=True; pass"),
    ({"buffer_blocks": 4, "shuffle": True}, "no effect without block=; pass block="),
    ({"block": 2, "buffer_blocks": 0, "shuffle": True}, "buffer_blocks"),
    ({"weights": [1, 2], "replacement": True}, "weights"),
    ({"weights": [-1] * N, "replacement": True}, "weights"),
    ({"num_samples": N + 1}, "num_samples"),
    ({"sampler": [0], "shuffle": True}, "sampler"),
    ({"sampler": [0], "buffer_blocks": 4}, "got buffer_blocks=; leave out sampler="),
    ({"dtype": {"array": "f4"}}, "those of the loader have no names"),
    ({"dtype": "no type"}, "dtype"),
    ({"dtype": "S3"}, "numbers"),
    ({"transform": 3}, "transform"),
    ({"rank": 0.5, "world_size": 2}, "rank"),
    ({"rank": "0", "world_size": 2}, "rank"),
    ({"lead": 200}, "does not fit"),
    ({"weights": [1] * (N - 2) + [1e308] * 2, "replacement": True}, "sum of weights"),
    ({"weights": [5e-324] + [0] * (N - 1), "replacement": True}, "sum of weights"),
    ({"sampler": iter([1, 2])}, "every epoch"),
    ({"sampler": 5}, "every epoch"),
    ({"shuffle": "chunk"}, "True or False: got 'chunk'; pass shuffle=True, with block"),
    ({"drop_last": "no"}, "drop_last= must be True or False"),
    ({"replacement": 2}, "replacement= must be True or False"),
    ({"return_index": None}, "return_index= must be True or False"),
    ({"num_threads": 0}, "num_threads="),
    ({"batch_size": MANY}, "batch_size= is too large"),
    ({"rank": 3, "world_size": MANY, "uneven": "pad"}, "world_size= is too large"),
    ({"block": MANY, "shuffle": True}, "block= is too large"),
    ({"block": 2, "buffer_blocks": MANY, "shuffle": True}, "buffer_blocks= is too"),
    ({"num_samples": MANY, "replacement": True}, "num_samples= is too large"),
    ({"stride": MANY}, "stride= is too large"),
    ({"window": MANY, "padding": "fill"}, "window= is too large"),
    ({"lead": -MANY, "padding": "fill"}, "lead= of array must be a whole number"),
    ({"dtype": ("f4", None)}, "does not name a data type"),
    ({"dtype": "f4,("}, "does not name a data type"),
    ({"scale": 10**400}, "must be numbers"),
    ({"offset": [1, 2]}, "must be numbers.*pass a function as transform="),
    ({"weights": np.full(N, 1j), "replacement": True}, "must be numbers"),
]


@pytest.mark.parametrize(("options", "named"), WRONG)
def test_arguments_that_make_no_sense_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        Loader(A, **options)


@pytest.mark.parametrize(
    ("arrays", "dtype", "named"),
    [
        ((A, A), ["f4"], "one entry for each array: expected 2, got 1"),
        ({"x": A}, {"y": "f4"}, "the loader does not have: expected x, got y"),
    ],
)
def test_options_that_do_not_fit_the_arrays_are_refused(arrays, dtype, named):
    with pytest.raises(OptionError, match=named):
        Loader(arrays, dtype=dtype)
    first, second = next(iter(Loader((A, A), dtype=["f4", None])))
    assert (first.dtype, second.dtype) == ("f4", A.dtype)


def test_nothing_can_be_drawn_from_no_samples():
    nothing = stored(IMAGES[:0], (4, 2, 2))
    with pytest.raises(OptionError, match="at least one sample to draw from"):
        Loader(nothing, replacement=True)


def test_a_sampler_that_names_no_sample_is_refused():
    for sampler in ([0, N], [-1], [0.5], [[1]], [[1], [2, 3]]):
        with pytest.raises(OptionError, match="sampler"):
            list(Loader(A, sampler=sampler))
    with pytest.raises(OptionError, match="got 9223372036854775808"):
        list(Loader(A, sampler=np.array([2**63], "u8")))


def test_the_largest_numbers_mean_all_samples():
    largest = {"batch_size": 2**62, "return_index": True}
    blocks = {"shuffle": True, "block": 2**62, "buffer_blocks": 2**62}
    for options in ({}, blocks, {"rank": 0, "world_size": 2**62, "uneven": "allow"}):
        ((_, index),) = Loader(A, **largest, **options)
        assert sorted(index) == list(range(N))
    (first, *_) = Loader(A, stride=2**62, window=2, padding="shift")
    assert np.array_equal(first, IMAGES[None, :2])


@pytest.mark.parametrize("options", [{"dtype": "f4"}, {"scale": 2.0}])
def test_text_does_not_become_numbers(options):
    with quiet_zarr():
        words = stored(np.array(["1", "2"], dtype=np.dtypes.StringDType()), (1,))
    with pytest.raises(OptionError, match="apply only to numbers"):
        Loader(words, **options)


def test_a_system_without_threads_is_told_and_read_from_without_them(
    monkeypatch,
):
    """As where a container's limit is reached, or the interpreter ends."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    array = stored(np.arange(12, dtype="i4"), (4,))
    with Loader(array, batch_size=4) as loader, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(UnsupportedError, match="can't start") as told:
            next(iter(loader))
        assert "prefetch_factor=0" in told.value.hint
        with Loader(array, batch_size=4, prefetch_factor=0) as alone:
            assert len(next(iter(alone))) == 4
    with loader:
        assert len(next(iter(loader))) == 4
