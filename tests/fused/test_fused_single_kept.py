"""Single inner chunks that the loops read with a cache: which are kept, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import CHAINS, CRC, VALUES, ZSTD, stored
from gpushard import Options
from gpushard.errors import ObjectChangedError
from gpushard.fused import choice
from gpushard.fused.short.ways import short_ways
from gpushard.pipeline import HostPipeline
from gpushard.stores.local import handles
from gpushard.stores.local.store import LocalStore
from spec_shards import index_of
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

pytestmark = [
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
    pytest.mark.usefixtures("settled"),
]

CACHED = Options(compile_nbytes=0, threads=1, chunk_cache_nbytes=1 << 20)
WAYS = {"single": CACHED, "small": CACHED.but(compile_nbytes=2**62)}
INSIDE = np.s_[35:60, 20:31]  # of one inner chunk


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def opened(root: Path, array: Any, options: Any = CACHED) -> gpushard.Array:
    """Array whose indexes are known, of whose inner chunks none is kept."""
    place = array.placed("local", root)
    a = gpushard.open_array(place, options=options, device="cpu")
    corners: Any = np.s_[::64, ::64]
    a.oindex[corners]  # `taken` counts only reads that begin with a plain key
    a.source.chunks.clear()
    return a


def refuse_files(monkeypatch) -> None:
    """Let reads fail that open a file or decode anything."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(LocalStore, "open_file", refused)
    monkeypatch.setattr(LocalStore, "read", refused)
    monkeypatch.setattr(HostPipeline, "decode", refused)


@pytest.mark.parametrize("way", WAYS)
def test_an_inner_chunk_is_kept_while_there_is_room(way, taken, tmp_path, monkeypatch):
    array = stored([ZSTD])
    a = opened(tmp_path, array, WAYS[way])
    assert_same_bits(a[INSIDE], array.full[INSIDE])
    assert len(a.source.chunks) == 1
    refuse_files(monkeypatch)
    for key in (INSIDE, np.s_[63, 16:32:3]):
        assert_same_bits(a[key], array.full[key])
    assert taken == ([True] * 3 if way == "single" else [])


@pytest.mark.parametrize("way", WAYS)
def test_an_inner_chunk_that_is_read_again_drops_another(way, tmp_path):
    array = stored([ZSTD])
    a = opened(tmp_path, array, WAYS[way].but(chunk_cache_nbytes=2048))
    kept = []
    for key in (np.s_[3, 4], INSIDE, INSIDE):
        assert_same_bits(a[key], array.full[key])
        kept.append(set(a.source.chunks._slot_of))
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize("dtype", ["int32", "bool"])
@pytest.mark.parametrize("chain", sorted(CHAINS.keys() - {"raw"}))
def test_parts_of_every_chain_are_read_from_what_is_kept(
    chain, dtype, taken, tmp_path, monkeypatch
):
    array = stored(CHAINS[chain], dtype, [codec("bytes", endian="big")])
    a = opened(tmp_path, array)
    for key in (np.s_[40, 20], INSIDE):
        assert_same_bits(a[key], array.full[key])
    assert all(taken)
    refuse_files(monkeypatch)
    for key in (INSIDE, np.s_[33, 17], np.s_[32:64:5, 31], np.s_[-61, 16:32]):
        assert_same_bits(a[key], array.full[key])


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 89)), max_size=40))
def test_single_elements_are_right_whatever_was_dropped(tmp_path_factory, places):
    array = stored([ZSTD, CRC])
    options = CACHED.but(chunk_cache_nbytes=3 * 2048)
    a = opened(tmp_path_factory.mktemp("a"), array, options)
    for place in places:
        assert a[place] == array.full[place]
    assert len(a.source.chunks) <= 3


def test_inner_chunks_of_a_replaced_shard_are_not_used(taken, tmp_path):
    array, other = stored([ZSTD]), stored([ZSTD], negated=True)
    a = opened(tmp_path, array)
    for _ in range(3):
        a[INSIDE]
    for key in [k for k in other.objects if k.startswith("c/")]:
        (tmp_path / "0" / key).write_bytes(other.objects[key])
        os.utime(tmp_path / "0" / key, ns=(1, 1))  # not in the same tick of the clock
    for _ in range(3):
        assert_same_bits(a[INSIDE], other.full[INSIDE])


def test_nothing_is_kept_of_a_file_that_changes_meanwhile(taken, tmp_path, monkeypatch):
    def changed(*_: Any) -> None:
        raise ObjectChangedError("planted")

    a = opened(tmp_path, stored([ZSTD]))
    reader: Any = short_ways(a.source).single
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "confirm", changed)
        assert reader.read(a.source, INSIDE) is None
    assert len(a.source.chunks) == 0


def test_nothing_is_kept_of_files_that_were_just_written(taken, tmp_path, monkeypatch):
    array = stored([ZSTD])
    monkeypatch.setattr(handles, "_SETTLED_NS", 10**18)
    a = opened(tmp_path, array)
    for _ in range(3):
        assert_same_bits(a[INSIDE], array.full[INSIDE])
    assert len(a.source.chunks) == 0


def test_a_damaged_inner_chunk_is_not_kept(tmp_path):
    array = stored([ZSTD, CRC])
    a = opened(tmp_path, array)
    shard = tmp_path / "0" / "c" / "0" / "0"
    data = shard.read_bytes()
    shard.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    for _ in range(3):
        with pytest.raises(gpushard.CorruptShardError):
            a[INSIDE]
    assert len(a.source.chunks) == 0


def test_without_room_for_an_inner_chunk_none_is_kept(taken, tmp_path):
    array = stored([ZSTD])
    a = opened(tmp_path, array, CACHED.but(chunk_cache_nbytes=2047))
    for _ in range(3):
        assert_same_bits(a[INSIDE], array.full[INSIDE])
    assert taken == [True] * 3


@pytest.mark.parametrize("keys", [np.s_[:32, :32], np.s_[3:9:2, 5:30]])
@pytest.mark.parametrize("small", [0, 8], ids=["long", "short"])
def test_of_inner_chunks_that_share_their_bytes_only_what_was_decoded_is_kept(
    keys, small, tmp_path
):
    """The second is copied from the first, and nothing is decoded to its own place."""
    place = stored([ZSTD]).placed("local", tmp_path)
    data = (place / "c/0/0").read_bytes()
    n_index = 8 * 16 + 4
    entries = np.frombuffer(data[-n_index:-4], "<u8").reshape(8, 2).copy()
    entries[1] = entries[0]
    (place / "c/0/0").write_bytes(data[:-n_index] + index_of(entries.tolist()))
    want = VALUES[:32, :32].copy()
    want[:, 16:] = want[:, :16]
    whole = np.zeros_like(VALUES)
    whole[:32, :32] = want
    options = CACHED.but(small_read_chunks=small)
    a = gpushard.open_array(place, options=options, device="cpu")
    for _ in range(3):
        assert_same_bits(a[keys], whole[keys].copy())
    assert len(a.source.chunks) > 0
