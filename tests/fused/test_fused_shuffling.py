"""Byte and bit shuffles undone in compiled loops: exact, and within their bounds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from lz4_blocks import GuardedRoom

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused.compiled import shuffling
from gpushard.fused.words import TILE_NBYTES

ITEMSIZES = [*range(1, 21), 24, 32, 255]
MOST_NBYTES = 255 * 1100
CANARY = b"\xa5" * 64


def planes_of(items: np.ndarray) -> bytes:
    """Items, uint8 of shape (n_items, itemsize), as a byte shuffle has them."""
    return items.T.tobytes()


def bit_planes_of(items: np.ndarray) -> bytes:
    """The same as a bit shuffle has them; the items come in eights."""
    bits = np.unpackbits(items[..., np.newaxis], axis=-1, bitorder="little")
    planes = bits.reshape(len(items), 8 * items.shape[1]).T
    return np.packbits(planes, axis=-1, bitorder="little").tobytes()


@pytest.fixture(scope="module")
def undo():
    """Undoes a shuffle between pages that kill who touches them."""
    from numba import njit

    of_bytes, of_bits = shuffling.unshuffle, shuffling.unshuffle_bits

    @njit
    def run_bytes(source, target, nbytes, itemsize, wanted, _):
        of_bytes(source, target, nbytes, itemsize, wanted)

    @njit
    def run_bits(source, target, nbytes, itemsize, wanted, tile):
        of_bits(source, target, (nbytes, itemsize), wanted, tile)

    rooms = [GuardedRoom(MOST_NBYTES + 128) for _ in range(2)]
    tile = GuardedRoom(TILE_NBYTES)

    def undo(shuffled: bytes, itemsize: int, wanted=None, *, bits: bool) -> bytes:
        n, found = len(shuffled), set()
        wanted = wanted or (0, n)
        for at_end in (False, True):
            source = rooms[0].place(shuffled, at_end=at_end)
            padded = [bytes(n), CANARY] if not at_end else [CANARY, bytes(n)]
            target = rooms[1].place(b"".join(padded), at_end=at_end)
            target += len(CANARY) if at_end else 0
            run = run_bits if bits else run_bytes
            run(source, target, n, itemsize, wanted, tile.start)
            beside = target - len(CANARY) if at_end else target + n
            assert ctypes.string_at(beside, len(CANARY)) == CANARY
            got = ctypes.string_at(target, n)
            found.add(got[wanted[0] : wanted[1]])
        assert len(found) == 1
        return found.pop()

    return undo


def some_items(n: int, itemsize: int) -> np.ndarray:
    return np.random.default_rng([n, itemsize]).integers(0, 256, (n, itemsize), "u1")


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_shuffled_bytes_become_items_again_and_what_is_left_is_copied(itemsize, undo):
    for n in (*range(40), 63, 64, 65, 127, 128, 129, 1000):
        items, left = some_items(n, itemsize), bytes(range(itemsize - 1))
        for rest in (b"", left[:1], left):
            shuffled = planes_of(items) + rest
            assert undo(shuffled, itemsize, bits=False) == items.tobytes() + rest


@pytest.mark.parametrize("itemsize", ITEMSIZES)
def test_shuffled_bits_become_items_again_and_what_is_left_is_copied(itemsize, undo):
    for n in (*range(0, 160, 8), 248, 504, 512, 520, 632, 1000, 1024, 1096):
        items, left = some_items(n, itemsize), bytes(range(itemsize - 1))
        for rest in (b"", left[:1], left):
            shuffled = bit_planes_of(items) + rest
            assert undo(shuffled, itemsize, bits=True) == items.tobytes() + rest


@pytest.mark.parametrize("itemsize", [1, 4, 5, 16, 20])
def test_bits_of_items_that_do_not_come_in_eights_were_not_shuffled(itemsize, undo):
    for n in (1, 7, 10, 12, 129, 1004):
        same = some_items(n, itemsize).tobytes()
        assert undo(same, itemsize, bits=True) == same


@pytest.mark.parametrize("bits", [False, True], ids=["bytes", "bits"])
@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 8, 16, 17])
def test_a_wanted_part_is_there_wherever_it_begins_and_ends(itemsize, bits, undo):
    rng = np.random.default_rng(itemsize)
    for n in (8, 24, 128, 136, 520, 1048):
        items = some_items(n, itemsize)
        shuffled = bit_planes_of(items) if bits else planes_of(items)
        shuffled += bytes(itemsize - 1)
        whole = items.tobytes() + bytes(itemsize - 1)
        ends = rng.integers(0, len(whole) + 1, (20, 2))
        near = [(0, 0), (0, 1), (len(whole) - 1, len(whole)), (len(whole),) * 2]
        for wanted in [*near, *map(tuple, np.sort(ends))]:
            got = undo(shuffled, itemsize, wanted, bits=bits)
            assert got == whole[wanted[0] : wanted[1]]


def test_a_part_is_put_together_without_the_items_far_from_it():
    """Few bytes of a large block should cost little."""
    from numba import njit

    items = some_items(1024, 4)
    called = shuffling.unshuffle
    run = njit(lambda source, target: called(source, target, 4096, 4, (2000, 2004)))
    source, target = np.frombuffer(planes_of(items), "u1"), np.zeros(4096, "u1")
    run(source.ctypes.data, target.ctypes.data)
    assert target[2000:2004].tobytes() == items[500].tobytes()
    assert not target[:2000].any()
    assert not target[2000 + 64 :].any()
