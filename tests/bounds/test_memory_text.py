"""Inner chunks of strings are decoded within the memory limit, whatever they hold."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import gpushard
from gpushard.converting.copying import Copy
from gpushard.options import MIB
from gpushard.pipeline import HostPipeline
from gpushard.placing.outputs import new_output
from memory_probe import status_nbytes
from memory_sweep import grown, in_a_child

LIMIT = 64 * MIB
pytestmark = pytest.mark.filterwarnings(
    "ignore:The codec `vlen-utf8` is currently not part"
)
measured = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux tells the highest memory of a process since a moment",
)


def put(place: Any, word: str, n: int, k: int = 6) -> Any:
    """`k` inner chunks of `n` times the same word."""
    text = np.dtypes.StringDType()
    packed = [ZstdCodec(level=1)]
    a = zarr.create_array(
        place, shape=(k * n,), chunks=(n,), dtype=text, compressors=packed
    )
    a[:] = np.full(k * n, word, text)
    return place


def opened(place: Any, threads: int) -> gpushard.Array:
    options = gpushard.Options(threads=threads, memory_limit=LIMIT)
    return gpushard.open_array(place, device="cpu", options=options)


def grows(tmp_path: Any, word: str, n: int, threads: int) -> tuple[str, int]:
    place = put(tmp_path / "a", word, n)
    warm = put(tmp_path / "warm up", word, 8)

    def read(place: Any) -> Any:
        return opened(place, threads)[::4099]

    return grown(partial(read, place), partial(read, warm), 0)


@measured
@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_inner_chunks_of_text_that_fit_take_no_more_than_the_limit(tmp_path, threads):
    each = 8 * 124 + 128 + 32
    came, nbytes = grows(tmp_path, "ä" * 62, 61 * MIB // each, threads)
    assert came == "read"
    assert nbytes < LIMIT


@measured
@pytest.mark.slow
@pytest.mark.parametrize("copies", [6, 8])
def test_a_letter_that_widens_a_whole_string_takes_no_more_than_the_limit(
    tmp_path, copies
):
    each = copies * 1004 + 128
    came, nbytes = grows(tmp_path, "a" * 996 + "😀", 61 * MIB // each, threads=1)
    assert came == ("LimitError" if copies == 6 else "read")
    assert nbytes < LIMIT


@pytest.mark.parametrize(("n", "is_alone"), [(100, False), (30_000, True)])
def test_only_inner_chunks_of_little_text_are_decoded_side_by_side(
    tmp_path, monkeypatch, n, is_alone
):
    a = opened(put(tmp_path / "a", "ä" * 50, n, k=4), threads=2)
    decode, meeting, met = HostPipeline.decode, Barrier(2), []

    def meet(*args: Any) -> Any:
        decoded = decode(*args)
        try:
            meeting.wait(1 if is_alone else 20)
            met.append(True)
        except BrokenBarrierError:
            pass
        return decoded

    monkeypatch.setattr(HostPipeline, "decode", meet)
    encoded = np.frombuffer((tmp_path / "a" / "c" / "0").read_bytes(), np.uint8)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(a.source.decode, encoded, (n,)) for _ in range(2)]
        assert all((one.result() == "ä" * 50).all() for one in both)
    assert bool(met) != is_alone


@measured
def test_a_conversion_counts_the_text_that_it_holds(tmp_path):
    word, n, k = "ä" * 60, 4096, 150
    place = put(tmp_path / "a", word, n, k)
    warm = put(tmp_path / "warm up", word, 8)

    def convert(place: Any) -> Any:
        options = gpushard.Options(threads=2, memory_limit=LIMIT)
        target = place.with_name(f"{place.name} converted")
        gpushard.convert(place, target, options=options)
        return np.zeros(0)

    came, nbytes = grown(partial(convert, place), partial(convert, warm), 0)
    assert came == "read"
    assert nbytes < LIMIT


@measured
def test_threads_keep_no_memory_of_the_text_that_they_place():
    text, n = np.dtypes.StringDType(), 10 * MIB // 100
    kept = np.zeros((), text)  # a first array would leave its text to the type

    def place(n_threads: int) -> None:
        pools = [ThreadPoolExecutor(1) for _ in range(n_threads)]
        for pool in pools:
            made = new_output((n,), kept.dtype)
            pool.submit(made.fill, "x" * 100).result()
            del made
        for pool in pools:
            pool.shutdown()

    def placed() -> int:
        np.empty(32 * MIB, "u1")  # from now on glibc takes as much from threads' memory
        # A text that grows may move from hole to hole of this process's memory. All the
        # others then go the same way.
        place(1)
        before = status_nbytes("VmRSS")
        place(10)
        return status_nbytes("VmRSS") - before

    (nbytes,) = in_a_child(lambda: (placed(),), ("died",))
    assert nbytes < 48 * MIB


def test_a_conversion_does_not_copy_the_text_that_it_reads(tmp_path, monkeypatch):
    read, taken, made = gpushard.Array.read, Copy._read, []

    def noted(*args: Any) -> Any:
        made.append(read(*args))
        return made[-1]

    def compared(*args: Any) -> Any:
        values = taken(*args)
        assert values is made[-1]
        return values

    monkeypatch.setattr(gpushard.Array, "read", noted)
    monkeypatch.setattr(Copy, "_read", compared)
    place = put(tmp_path / "a", "ä" * 60, 100)
    gpushard.convert(place, tmp_path / "b")
    assert made
