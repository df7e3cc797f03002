"""Parts of one inner chunk that has a file of its own, read in one compiled call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, ZstdCodec

import gpushard
from call_counts import n_calls
from gpushard.fused import choice
from gpushard.fused.short import one_call
from gpushard.fused.short.one_call import OneCall
from gpushard.options import MIB
from gpushard.pipeline import HostPipeline
from gpushard.stores.local import handles
from gpushard.stores.local.store import LocalStore
from unsharded_cases import (
    CHAINS,
    CHUNKS,
    COMPILED,
    FILL,
    SHAPE,
    need_opened_files,
    opened,
    stored,
    values_of,
)
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
pytestmark = [need_opened_files, pytest.mark.usefixtures("settled")]

SINGLE = COMPILED.but(small_read_chunks=8)
KEPT = SINGLE.but(chunk_cache_nbytes=MIB)
INSIDE = np.s_[9:15:2, 1:8]  # of the file 1/0
ZSTD_CRC = CHAINS["zstd-crc"]


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def file_of(place: Path, i: int, j: int) -> Path:
    return place / "c" / str(i) / str(j)


def refuse_work(monkeypatch, *, opening: bool = False) -> None:
    """Let reads fail that Python decodes or, if `opening`, that open a file."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(LocalStore, "read", refused)
    monkeypatch.setattr(HostPipeline, "decode", refused)
    if opening:
        monkeypatch.setattr(LocalStore, "open_current", refused)
        monkeypatch.setattr(LocalStore, "open_file", refused)


def looks_during(read: Any) -> list[str]:
    """Paths that are looked at while `read` is called, which opens none."""
    looks, stat = [], os.stat

    def noted(path: Any, **how: Any) -> Any:
        looks.append(path)
        return stat(path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", None)
        patch.setattr(os, "stat", noted)
        read()
    return looks


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", ["i4", "i1", "f8"])
def test_every_chain_is_read_and_what_has_no_file_is_filled(
    tmp_path, taken, monkeypatch, chain, dtype
):
    values = values_of(dtype)
    stored(tmp_path, values, **CHAINS[chain])
    a = opened(tmp_path, SINGLE)
    refuse_work(monkeypatch)
    keys = (INSIDE, np.s_[49, -1], np.s_[20, 12], np.s_[17:24, 20:30], np.s_[-1, 31:])
    for key in keys * 2:
        got, want = a[key], values[key]
        assert_same_bits(got, want)
        assert type(got) is type(want)
    assert taken == [True] * 10


@pytest.fixture(scope="module", params=["raw", "big-endian", "zstd-crc", "blosc", "v2"])
def arrays(request, tmp_path_factory):
    """One array that keeps no inner chunk, some, and all; and its values."""
    place = tmp_path_factory.mktemp("arrays")
    values = values_of()
    stored(place, values, **CHAINS[request.param])
    some = KEPT.but(chunk_cache_nbytes=3 * 320, file_handles=2)
    return [opened(place, options) for options in (SINGLE, some, KEPT)], values


@st.composite
def single_keys(draw) -> tuple[Any, ...]:
    """Integers and slices that mostly stay in one inner chunk."""
    key = []
    for n, cell in zip(SHAPE, CHUNKS, strict=True):
        start = draw(st.integers(0, n - 1))
        end = min(start // cell * cell + cell, n)
        some = slice(start, draw(st.integers(start + 1, end)), draw(st.integers(1, 4)))
        key.append(
            draw(st.sampled_from([start, start - n, some, slice(start - n, end)]))
        )
    return tuple(key)


@given(st.lists(single_keys(), min_size=1, max_size=8))
def test_any_part_of_an_inner_chunk_is_read_as_numpy_reads_it(arrays, keys):
    several, values = arrays
    for key in keys:
        for a in several:
            got, want = a[key], values[key]
            assert_same_bits(got, want)
            assert type(got) is type(want)


@pytest.mark.parametrize("chain", ["raw", "zstd-crc"])
@pytest.mark.parametrize("options", [SINGLE, KEPT], ids=["kept by none", "kept"])
def test_a_file_that_is_replaced_or_deleted_is_seen_at_the_next_read(
    tmp_path, taken, chain, options
):
    values = values_of()
    for name, some in (("a", values), ("b", -values)):
        stored(tmp_path / name, some, **CHAINS[chain])
    a, path = opened(tmp_path / "a", options), file_of(tmp_path / "a", 1, 0)
    for _ in range(2):
        assert_same_bits(a[INSIDE], values[INSIDE])
    path.rename(tmp_path / "grave")
    for _ in range(2):
        assert (a[INSIDE] == FILL).all()
    file_of(tmp_path / "b", 1, 0).rename(path)
    for _ in range(2):
        assert_same_bits(a[INSIDE], -values[INSIDE])
    with path.open("r+b") as file:
        file.write((tmp_path / "grave").read_bytes())
        os.utime(path, ns=(1, 1))  # not in the same tick of the clock
    for _ in range(2):
        assert_same_bits(a[INSIDE], values[INSIDE])
    assert taken == [True] * 8


def test_a_file_overwritten_during_the_read_is_read_again(tmp_path, taken, monkeypatch):
    values = values_of()
    for name, some in (("a", values), ("b", -values)):
        stored(tmp_path / name, some)
    a, plain = opened(tmp_path / "a", SINGLE), OneCall.read_box
    path, other = (file_of(tmp_path / name, 1, 0) for name in "ab")

    def read_box(*args):
        done = plain(*args)
        path.write_bytes(other.read_bytes())
        return done

    monkeypatch.setattr(OneCall, "read_box", read_box)
    assert_same_bits(a[INSIDE], -values[INSIDE])
    assert taken == [False]


def test_what_is_kept_is_not_opened_and_looked_at_once(tmp_path, taken, monkeypatch):
    values = values_of()
    stored(tmp_path, values, **ZSTD_CRC)
    a = opened(tmp_path, KEPT)
    a[INSIDE]
    assert len(a.source.chunks) == 1
    refuse_work(monkeypatch, opening=True)
    for key in (INSIDE, np.s_[8, 9], np.s_[15, :9:4]):
        looks = looks_during(lambda key=key: assert_same_bits(a[key], values[key]))
        assert looks == [str(file_of(tmp_path, 1, 0))]
    assert taken == [True] * 4


def test_a_file_that_is_open_is_looked_at_by_its_path_once(tmp_path):
    values = values_of()
    stored(tmp_path, values)
    a = opened(tmp_path, SINGLE)
    a[INSIDE]
    looks = looks_during(lambda: assert_same_bits(a[INSIDE], values[INSIDE]))
    assert looks == [str(file_of(tmp_path, 1, 0))]


def test_nothing_is_kept_of_files_that_were_just_written(tmp_path, taken, monkeypatch):
    values = values_of()
    stored(tmp_path, values, **ZSTD_CRC)
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**18)
    a = opened(tmp_path, KEPT)
    for _ in range(3):
        assert_same_bits(a[INSIDE], values[INSIDE])
    assert len(a.source.chunks) == 0
    assert taken == [True] * 3


def test_nothing_is_kept_of_what_has_no_file(tmp_path, taken):
    stored(tmp_path, values_of(), **ZSTD_CRC)
    a = opened(tmp_path, KEPT)
    for _ in range(3):
        assert a[20, 12] == FILL
    assert len(a.source.chunks) == 0
    assert taken == [True] * 3


@pytest.mark.parametrize("options", [SINGLE, KEPT], ids=["kept by none", "kept"])
@pytest.mark.parametrize("size", [0, 3, 319, 321, 5000])
@pytest.mark.parametrize("chain", ["raw", "zstd-crc", "zstd", "blosc", "turned gzip"])
def test_a_damaged_file_is_named(tmp_path, taken, chain, size, options):
    stored(tmp_path, values_of(), **CHAINS[chain])
    path = file_of(tmp_path, 1, 0)
    path.write_bytes(bytes(size))
    a = opened(tmp_path, options)
    for _ in range(2):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[INSIDE]
        assert caught.value.inner_chunk == (1, 0)
        assert caught.value.shard_key == "c/1/0"
    assert not any(taken)
    assert not len(a.source.chunks or ())


def test_a_checksum_that_differs_is_named(tmp_path):
    stored(tmp_path, values_of(), compressors=[Crc32cCodec()])
    path = file_of(tmp_path, 1, 0)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(gpushard.ChecksumError):
        opened(tmp_path, SINGLE)[INSIDE]


def test_a_link_out_of_the_store_is_refused(tmp_path):
    values = values_of()
    stored(tmp_path / "a", values)
    path = file_of(tmp_path / "a", 1, 0)
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(gpushard.StoreError, match="out of the store"):
        opened(tmp_path / "a", SINGLE)[INSIDE]
    store = LocalStore(tmp_path / "a", allow_symlinks_outside=True)
    assert_same_bits(opened(store, SINGLE)[INSIDE], values[INSIDE])


def test_a_store_that_is_gone_has_no_fill_values(tmp_path):
    stored(tmp_path / "a", values_of())
    a = opened(tmp_path / "a", SINGLE)
    assert a[20, 12] == FILL
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(gpushard.StoreError, match="directory is gone"):
        a[20, 12]


def test_a_store_that_reads_in_a_way_of_its_own_is_asked(tmp_path, taken):
    class Own(LocalStore):
        n_read = 0

        def read(self, requests):
            self.n_read += len(requests)
            return super().read(requests)

    values = values_of()
    stored(tmp_path, values)
    store = Own(tmp_path)
    a = opened(store, SINGLE)
    n_before = store.n_read
    assert_same_bits(a[INSIDE], values[INSIDE])
    assert store.n_read == n_before + 1
    assert not taken


def test_a_store_that_checks_what_is_missing_is_asked(tmp_path, taken, monkeypatch):
    stored(tmp_path, values_of())
    monkeypatch.setattr(LocalStore, "checks_missing", True)
    a, asked, read = opened(tmp_path, SINGLE), [], LocalStore.read
    monkeypatch.setattr(
        LocalStore, "read", lambda *args: asked.append(args) or read(*args)
    )
    assert a[20, 12] == FILL
    assert a[9, 1] == values_of()[9, 1]
    assert (len(asked), taken) == (1, [False, True])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(COMPILED, id="no short ways"),
        pytest.param(SINGLE.but(compile_nbytes=2**62), id="no loops"),
    ],
)
def test_options_are_heeded(options, tmp_path, taken):
    values = values_of()
    stored(tmp_path, values, **ZSTD_CRC)
    a = opened(tmp_path, options)
    for _ in range(2):
        assert_same_bits(a[INSIDE], values[INSIDE])
    assert not any(taken)


@pytest.mark.parametrize("fact", [{"is_crowded": True}, {"most_window_nbytes": 1}])
def test_limits_without_room_for_what_threads_keep_are_heeded(tmp_path, taken, fact):
    values = values_of()
    stored(tmp_path, values, **ZSTD_CRC)
    a = opened(tmp_path, SINGLE)
    vars(a.source.room).update(fact)
    assert_same_bits(a[INSIDE], values[INSIDE])
    assert not taken


def test_inner_chunks_above_the_cap_are_refused(tmp_path, taken):
    stored(tmp_path, values_of(), **ZSTD_CRC)
    with pytest.raises(gpushard.LimitError):
        opened(tmp_path, SINGLE.but(max_chunk_nbytes=319))[INSIDE]
    assert not any(taken)


def test_large_inner_chunks_are_read_as_before(tmp_path, taken, monkeypatch):
    values = values_of()
    stored(tmp_path, values, compressors=[ZstdCodec()])
    monkeypatch.setattr(one_call, "MOST_NBYTES", 300)
    a = opened(tmp_path, SINGLE)
    assert_same_bits(a[INSIDE], values[INSIDE])
    assert not taken


@pytest.mark.parametrize(("chain", "n"), [("raw", 75), ("zstd", 75), ("kept", 90)])
def test_a_read_makes_few_calls_of_python(tmp_path, chain, n):
    # Each costs 0.1 to 0.3 us, as in `test_small_reads`.
    options = KEPT if chain == "kept" else SINGLE
    stored(tmp_path, values_of(), **CHAINS["zstd" if chain == "kept" else chain])
    a = opened(tmp_path, options)
    for key in np.s_[20, 3], np.s_[20, 1:7]:
        for _ in range(2):
            a[key]
        assert n_calls(lambda key=key: a[key]) < n
