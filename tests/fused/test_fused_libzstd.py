"""The system's libzstd: the same library decodes a frame, whichever way is taken."""

from __future__ import annotations

import ctypes
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gpushard
from fused_cases import (
    CHAINS,
    CHUNK,
    FUSED,
    PLAIN,
    VALUES,
    ZSTD,
    assert_all_fused,
    assert_same_outcome,
    stored,
)
from gpushard.codecs import libzstd
from gpushard.codecs.contexts import ThreadContexts
from gpushard.fused import libraries, placer
from gpushard.fused.thread_memory import ThreadMemory
from zarr_oracle import assert_same_bits, held

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

CHUNK_NBYTES = 4 * CHUNK[0] * CHUNK[1]
WAYS = pytest.mark.parametrize("way", [FUSED, PLAIN], ids=["loops", "plain"])
_SIZE, _ADDRESS = ctypes.c_size_t, ctypes.c_void_p


class Sevens:
    """A libzstd that makes sevens of every frame, or of none if it `refuses`."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.n_made = 0
        self.freed: list[int] = []

        def decompress(context, target, nbytes, source, encoded_nbytes):
            assert source
            assert encoded_nbytes
            if context in self.freed or refuses:
                return -1
            ctypes.memset(target, 7, nbytes)
            return nbytes

        kind = ctypes.CFUNCTYPE(_SIZE, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _SIZE)
        self.ZSTD_decompressDCtx = kind(decompress)

    def ZSTD_versionNumber(self) -> int:  # noqa: N802 - as libzstd has it
        return 10599

    def ZSTD_findFrameCompressedSize(self, _: int, nbytes: int) -> int:  # noqa: N802
        return nbytes

    def ZSTD_createDCtx(self) -> int:  # noqa: N802
        self.n_made += 1
        return self.n_made

    def ZSTD_freeDCtx(self, context: int) -> None:  # noqa: N802
        self.freed.append(context)


@pytest.fixture
def use(monkeypatch):
    """Puts a library in the place of the system's, for frames of so many bytes on."""

    def put(library, large_nbytes: int = CHUNK_NBYTES) -> None:
        monkeypatch.setattr(libzstd, "find", lambda: library)
        monkeypatch.setattr(libzstd, "LARGE_NBYTES", large_nbytes)

    monkeypatch.setattr(placer, "_memory", ThreadMemory())
    contexts = ThreadContexts(libzstd.new_context, "ZSTD_freeDCtx")
    monkeypatch.setattr(libzstd, "_contexts", contexts)
    libraries.find_library.cache_clear()
    yield put
    libraries.find_library.cache_clear()


@pytest.fixture
def real(use):
    """The system's own, for the small frames of these arrays."""
    library = libzstd.find()
    if library is None:
        pytest.skip("libzstd is not installed on this system")
    use(library)
    return library


def array(chain: str = "zstd", options: gpushard.Options = FUSED) -> gpushard.Array:
    return gpushard.open_array(held(stored(CHAINS[chain]).objects), options=options)


@pytest.mark.parametrize("chain", ["zstd", "zstd, crc32c"])
@WAYS
def test_frames_of_a_size_on_are_decoded_by_it_whichever_way(way, chain, use, seen):
    use(Sevens())
    assert (array(chain, way)[...] == 0x07070707).all()
    assert (array(chain, way.but(small_read_chunks=9))[3, 4] == 0x07070707).all()
    assert (seen.n_left == 0) == (way is FUSED)


@WAYS
def test_smaller_frames_are_not_decoded_by_it_whichever_way(way, use):
    use(Sevens(), CHUNK_NBYTES + 1)
    assert_same_bits(array("zstd", way)[...], VALUES)


@WAYS
def test_what_it_refuses_zstandard_decodes_whichever_way(way, use, seen):
    use(Sevens(refuses=True))
    assert_same_bits(array("zstd", way)[...], VALUES)
    assert seen.n_left > 0


def test_without_it_the_loops_take_the_one_in_zstandards_wheel(use, seen):
    use(None)
    a = array()
    assert_same_bits(a[...], VALUES)
    assert a.explain().loops == "libzstd"
    assert_all_fused(seen)


def test_where_it_is_a_report_names_it_and_its_release(real, seen):
    a = array()
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[::-3, 5:80:2], VALUES[::-3, 5:80:2])
    number = real.ZSTD_versionNumber()
    release = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    report = a.explain()
    assert report.loops == f"libzstd {release} of the system"
    assert f", libzstd {release} from " in report.codecs[0].library
    assert_all_fused(seen)


def test_damage_has_one_outcome_with_and_without_the_loops(real):
    objects = stored([ZSTD]).objects
    key = "c/0/0"
    rng = np.random.default_rng(5)
    outcomes = set()
    for _ in range(60):
        damaged = bytearray(objects[key])
        damaged[int(rng.integers(len(damaged)))] ^= 1 << rng.integers(8)
        outcomes.add(assert_same_outcome(held({**objects, key: bytes(damaged)})))
    assert outcomes == {True, False}


@WAYS
def test_its_contexts_end_with_their_threads(way, use):
    library = Sevens()
    use(library)
    a = array("zstd", way)
    for _ in range(5):
        thread = threading.Thread(target=lambda: a[...])
        thread.start()
        thread.join()
    gc.collect()
    assert library.n_made == 5
    assert sorted(library.freed) == [1, 2, 3, 4, 5]


def interface(number: int, *lacking: str) -> SimpleNamespace:
    """A library of that release, as ctypes would have it, without some functions."""
    names = ("decompressDCtx", "findFrameCompressedSize", "createDCtx", "freeDCtx")
    functions = {f"ZSTD_{n}": SimpleNamespace() for n in {*names} - {*lacking}}
    return SimpleNamespace(ZSTD_versionNumber=lambda: number, **functions)


@pytest.mark.parametrize(
    ("library", "is_taken"),
    [
        (interface(10504), True),
        (interface(10503), False),
        (interface(10504, "freeDCtx"), False),
        (None, False),
    ],
    ids=["new enough", "too old", "another interface", "not installed"],
)
def test_it_is_taken_only_if_it_is_new_enough(library, is_taken, monkeypatch):
    def load(_: str):
        if library is None:
            raise OSError("no such file")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert libzstd.find.__wrapped__() is (library if is_taken else None)
