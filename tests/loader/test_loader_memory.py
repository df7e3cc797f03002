"""Memory that a loader uses again: which pieces, how many, and for what."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import HostMemoryError, Loader
from gpushard.loader.device_memory import DeviceMemory
from gpushard.loader.memory import Memory, _Loan, _Owner
from loader_data import images, labels, stored

BYTES = np.dtype("u1")
KERNELS = Kernels()


@pytest.fixture(params=["host", "device"])
def memory(request):
    """Memory that keeps two free pieces."""
    if request.param == "host":
        return Memory(2)
    return DeviceMemory(EmulatedDevice(KERNELS, load_standin(), seed=3), 2, lambda: 0)


def free_pieces(memory):
    return memory._back if isinstance(memory, Memory) else memory._free


def address_of(taken):
    return taken.ctypes.data if isinstance(taken, np.ndarray) else taken.address


@pytest.mark.parametrize(
    ("nbytes", "is_reused"), [(64, True), (32, True), (31, False), (65, False)]
)
def test_a_piece_is_used_again_for_at_least_half_of_it(memory, nbytes, is_reused):
    first = memory.take((64,), BYTES)
    address = address_of(first)
    del first
    again = memory.take((nbytes,), BYTES)
    assert (address_of(again) == address) == is_reused
    assert len(free_pieces(memory)) == (0 if is_reused else 1)


def test_of_pieces_that_do_not_fit_no_more_are_kept_than_were_asked_for(memory):
    held = [memory.take((64,), BYTES) for _ in range(5)]
    del held
    assert len(free_pieces(memory)) == 5
    larger = memory.take((1000,), BYTES)
    assert len(free_pieces(memory)) == 2
    del larger


def test_pieces_that_another_thread_takes_first_are_made_anew(memory, monkeypatch):
    class Contested(deque):
        def __len__(self):
            return 1

    name = "_back" if isinstance(memory, Memory) else "_free"
    monkeypatch.setattr(memory, name, Contested())
    assert len(memory.take((64,), BYTES)) == 64


def test_a_loan_that_an_interrupt_left_without_a_piece_is_passed_over():
    memory = Memory(2)
    memory._back.append(_Loan(_Owner(np.empty(64, np.uint8))))
    taken = memory.take((64,), BYTES)
    assert not memory._back
    del taken


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtypes.StringDType()])
def test_elements_that_refer_to_other_memory_are_not_laid_over_used_bytes(dtype):
    memory = Memory(2)
    words = memory.take((3,), dtype)
    words[:] = ["a", "bc", "d" * 40]
    assert words.tolist() == ["a", "bc", "d" * 40]
    del words
    assert not memory._back


@pytest.mark.parametrize("prefetch_factor", [0, 2])
@pytest.mark.parametrize(("n_taken", "name"), [*enumerate("xyxy")])
def test_a_host_without_memory_is_an_error_that_names_the_array(
    n_taken, name, prefetch_factor, monkeypatch
):
    def take(memory, shape, dtype):
        if len(taken) == n_taken:
            raise MemoryError("Unable to allocate 1 GiB")
        taken.append(shape)
        return np.empty(shape, dtype)

    taken = []
    monkeypatch.setattr(Memory, "take", take)
    # Both arrays are read, then both are converted.
    options = {"shuffle": True, "prefetch_factor": prefetch_factor, "scale": 2}
    loader = Loader({"x": images(), "y": labels()}, batch_size=200, **options)
    with pytest.raises(HostMemoryError, match="Unable to allocate 1 GiB") as failed:
        next(iter(loader))
    (note,) = failed.value.__notes__
    assert note.endswith(f" of {name}")
    loader.close()


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
@pytest.mark.parametrize("name", ["numbers", "text"])
def test_a_window_longer_than_any_array_is_an_error_that_names_the_array(name):
    text = np.array(["a", "b"], np.dtypes.StringDType())
    array = images() if name == "numbers" else stored(text, (1,), fill="")
    loader = Loader({name: array}, window=1 << 60, padding="fill")
    with pytest.raises(HostMemoryError, match="has not enough memory") as failed:
        next(iter(loader))
    assert failed.value.__notes__[0].endswith(f" of {name}")
