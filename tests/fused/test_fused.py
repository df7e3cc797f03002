"""The compiled loops give what the plain way of the host gives, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import BitRound, Blosc

import gpushard
from array_strategies import codec, stored_arrays
from asked_store import AskedStore
from fused_cases import (
    CHAINS,
    CRC,
    FUSED,
    LITTLE,
    PLAIN,
    VALUES,
    ZSTD,
    assert_all_fused,
    assert_same_outcome,
    blosc,
    kind_of_sink,
    need_fast_packages,
    stored,
)
from gpushard import Options
from gpushard.fused import choice
from gpushard.fused.addresses import address_of
from gpushard.fused.libraries import find_library
from gpushard.fused.sink import FusedSink
from gpushard.options import MIB
from gpushard.placing.place import HostSink
from places import INTEROP
from selection_strategies import basic_keys, orthogonal_keys, take_orthogonal
from spec_shards import document, index_of, shard_of, sharding
from zarr_oracle import assert_same_bits, held

need_fast_packages()

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

MANIFEST: dict[str, Any] = json.loads((INTEROP / "manifest.json").read_text())


@pytest.mark.parametrize("name", CHAINS)
def test_the_loops_read_every_inner_chunk_of_a_chain_they_know(name, seen):
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[::-3, 5:80:2], VALUES[::-3, 5:80:2])
    rows = [99, 3, 3, 50, 0]
    assert_same_bits(a.oindex[rows, 7:], VALUES[rows, 7:])
    assert_all_fused(seen)


def test_a_report_says_what_the_loops_decoded_with():
    array = held(stored([ZSTD]).objects)
    report = gpushard.open_array(array, options=FUSED).explain()
    assert report.loops == "libzstd"
    assert "loops         compiled, with libzstd" in str(report)
    without = gpushard.open_array(array, options=PLAIN).explain()
    assert without.loops == ""
    assert "loops" not in str(without)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int16", "float64", "complex64"])
@pytest.mark.parametrize("order", ["little", "big"])
def test_the_loops_know_byte_orders_and_transposes(dtype, order, seen):
    transposed = codec("transpose", order=[1, 0])
    before = [transposed, codec("bytes", endian=order)]
    array = stored([ZSTD], dtype, before)
    a = gpushard.open_array(held(array.objects), options=FUSED)
    want = VALUES.astype(dtype)
    assert_same_bits(a[...], want)
    assert_same_bits(a[3:90:2, ::-1], want[3:90:2, ::-1])
    array = stored([ZSTD], dtype, before[1:])
    a = gpushard.open_array(held(array.objects), options=FUSED)
    # A whole inner chunk, which may be decoded in place only if nothing changes.
    assert_same_bits(a[:32, :16], want[:32, :16].copy())
    assert_all_fused(seen)


@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
@pytest.mark.parametrize("name", ["lz4", "zstd", "blosclz", "zlib"])
@pytest.mark.parametrize("blocksize", [0, 1024, 3000])
def test_parts_of_a_frame_are_decoded_block_by_block(
    name, shuffle, blocksize, tmp_path
):
    values = np.cumsum(np.arange(24 * 50 * 30) % 7).reshape(24, 50, 30).astype("i4")
    written = zarr.create_array(
        tmp_path,
        shape=values.shape,
        dtype="i4",
        chunks=(12, 50, 30),
        shards=(24, 50, 30),
        compressors=zarr.codecs.BloscCodec(
            typesize=4, cname=name, shuffle=shuffle, blocksize=blocksize
        ),
    )
    written[...] = values
    a = gpushard.open_array(tmp_path, options=FUSED)
    rows = (0, 1, 5, 11, 12, 23, slice(2, 4), slice(10, 14), slice(3, 24, 9))
    for key in rows:
        assert_same_bits(a[key], values[key])
        assert_same_bits(a[key, 7:9], values[key, 7:9])


@pytest.mark.parametrize("shuffle", [Blosc.SHUFFLE, Blosc.BITSHUFFLE])
@pytest.mark.parametrize("name", ["lz4", "zstd", "zlib", "blosclz"])
@pytest.mark.parametrize(
    ("typesize", "blocksize", "n_alike"),
    [(16, 0, 1), (16, 512, 1), (3, 512, 1), (255, 200, 9)],  # or such are stored as is
)
def test_items_cut_short_by_the_end_of_a_frame_or_block_are_read(
    name, shuffle, typesize, blocksize, n_alike
):
    values = (np.arange(4 * 1000) // n_alike % 251).astype("u1")
    chain = [codec("bytes"), blosc(name, "shuffle")]
    here = document((4000,), (4000,), sharding((1000,), codecs=chain))
    pack = Blosc(name, 5, shuffle, blocksize, typesize=typesize).encode
    frames = [bytes(pack(chunk)) for chunk in values.reshape(4, 1000)]
    assert all(frame[3] == typesize for frame in frames)
    objects = {"zarr.json": json.dumps(here).encode(), "c/0": shard_of(*frames)}
    a = gpushard.open_array(held(objects), options=FUSED)
    out = np.full(4000, 77, np.uint8)  # what is left unwritten stays
    assert_same_bits(a.read(out=out), values)
    assert_same_bits(a[995:1005], values[995:1005])


@pytest.mark.parametrize("block_nbytes", [MIB, 2 * MIB])
def test_blocks_that_take_much_memory_go_the_plain_way(block_nbytes, seen):
    values = np.arange(2 * MIB // 4, dtype="<i4")
    chain = [codec("bytes", endian="little"), blosc("zstd", "shuffle")]
    here = document(values.shape, values.shape, *chain) | {"data_type": "int32"}
    frame = bytes(Blosc("zstd", 1, 1, block_nbytes, typesize=4).encode(values))
    assert int.from_bytes(frame[8:12], "little") == block_nbytes
    objects = {"zarr.json": json.dumps(here).encode(), "c/0": frame}
    assert_same_bits(gpushard.open_array(held(objects), options=FUSED)[:], values)
    assert seen.n_left == (block_nbytes > MIB)


def test_a_block_that_is_not_wanted_may_be_damaged(seen):
    array = stored([blosc("zstd", "shuffle", 512)])
    objects = {**array.objects, "c/0/0": bytearray(array.objects["c/0/0"])}
    first = objects["c/0/0"].index(b"\x02\x01\x91\x04")  # the first frame's header
    last_block = int.from_bytes(objects["c/0/0"][first + 28 : first + 32], "little")
    objects["c/0/0"][first + last_block + 4 : first + last_block + 20] = bytes(16)
    a = gpushard.open_array(
        held({k: bytes(v) for k, v in objects.items()}), options=FUSED
    )
    assert_same_bits(a[:8, :16], VALUES[:8, :16])
    with pytest.raises(gpushard.CorruptShardError):
        a[:32, :16]


@given(stored_arrays(), st.data())
def test_any_array_reads_alike_with_and_without_the_loops(stored, data):
    store = held(stored.objects)
    a = gpushard.open_array(store, options=FUSED)
    b = gpushard.open_array(store, options=PLAIN)
    assert_same_bits(a[...], b[...])
    key = data.draw(basic_keys(stored.full.shape))
    assert_same_bits(a[key], b[key])
    across = data.draw(orthogonal_keys(stored.full.shape))
    assert_same_bits(a.oindex[across], take_orthogonal(stored.full, across))


class Placing(AskedStore):
    """Answers lie where the object's own start would be the start of `memory`."""

    memory = np.zeros(4096, np.uint8)

    def read(self, requests: Any) -> Any:
        answers = super().read(requests)
        for n, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            place = self.memory[request.start :][: len(answer.data)]
            place[:] = answer.data
            answers[n] = answer._replace(data=place)
        return answers


@pytest.mark.parametrize("shards", [None, (8, 32)], ids=["unsharded", "sharded"])
def test_rows_are_copied_wherever_their_inner_chunk_would_begin(shards, seen, tmp_path):
    """Only the row is in memory; its inner chunk would begin where the row lands."""
    values = np.arange(8 * 32, dtype="i4").reshape(8, 32)
    layout = {"chunks": (8, 32), "shards": shards, "compressors": None}
    zarr.create_array(tmp_path, data=values, **layout)
    store = Placing(tmp_path)
    a = gpushard.open_array(store, options=FUSED)
    row = store.memory[: 32 * 4].view("i4")
    store.memory[:] = 255
    a.read(5, out=row)
    assert_same_bits(row, values[5])
    assert_all_fused(seen)


@pytest.mark.parametrize("chain", ["zstd", "lz4", "blosc lz4 shuffle 0"])
@pytest.mark.parametrize(
    ("n", "overlapping"),
    [(16, lambda x: x[:, ::-1]), (8, lambda x: x.reshape(-1)[:256].reshape(32, 8))],
    ids=["reversed", "closer together"],
)
def test_the_later_of_outputs_that_overlap_is_as_without_the_loops(
    n, overlapping, chain, seen
):
    """An inner chunk that is decoded into one output is not copied from there."""
    store = held(stored(CHAINS[chain]).objects)
    keys = [(slice(0, 32), slice(0, m)) for m in (16, n)]
    for options in (FUSED, PLAIN):
        x = np.zeros((32, 16), "i4")
        a = gpushard.open_array(store, options=options)
        later = a.read_many(keys, out=[x, overlapping(x)])[1]
        assert_same_bits(later, VALUES[:32, :n])
        assert options is PLAIN or seen.n_left == 0
    assert isinstance(seen.sinks[0], FusedSink)


@pytest.mark.parametrize("chain", ["crc32c", "zstd", "gzip", "blosc lz4 shuffle 0"])
def test_an_inner_chunk_that_ends_within_another_is_not_taken_for_that(chain, tmp_path):
    """Both begin in the same place, but one of them is damaged."""
    place = stored(CHAINS[chain]).placed("local", tmp_path)
    data = (place / "c/0/0").read_bytes()
    n_index = 8 * 16 + 4
    entries = np.frombuffer(data[-n_index:-4], "<u8").reshape(8, 2).copy()
    entries[1] = entries[0]
    entries[1, 1] -= 1
    (place / "c/0/0").write_bytes(data[:-n_index] + index_of(entries.tolist()))
    for options in (FUSED, PLAIN):
        a = gpushard.open_array(place, options=options)
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[:32, :32]
        assert caught.value.inner_chunk == (0, 1)
        assert_same_bits(a[:32, :16], VALUES[:32, :16])


def test_parts_that_share_inner_chunks_are_all_written(seen):
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=FUSED)
    keys = [(slice(i, i + 40), slice(j, None, 2)) for i in (0, 9, 60) for j in (0, 33)]
    outs = [np.empty(VALUES[key].shape[::-1], "i4").T for key in keys[:-1]]
    outs.append(np.empty(VALUES[keys[-1]].shape, "i4"))
    for got, key in zip(a.read_many(keys, out=outs), keys, strict=True):
        assert_same_bits(np.ascontiguousarray(got), VALUES[key])
    assert_all_fused(seen)


def test_missing_inner_chunks_hold_the_fill_value(seen):
    array = stored([ZSTD])
    objects = {k: v for k, v in array.objects.items() if not k.startswith("c/1")}
    a = gpushard.open_array(held(objects), options=FUSED)
    want = VALUES.copy()
    want[64:] = 0
    assert_same_bits(a[...], want)
    assert_all_fused(seen)


@pytest.mark.parametrize("name", sorted(MANIFEST["valid"]))
def test_samples_of_other_writers_read_alike(name):
    path = INTEROP / MANIFEST["valid"][name]["path"]
    a = gpushard.open_array(path, options=FUSED)
    assert_same_bits(a[...], gpushard.open_array(path, options=PLAIN)[...])


@pytest.mark.parametrize("name", sorted(MANIFEST["corrupt"]))
def test_damaged_samples_are_refused_alike(name):
    assert_same_outcome(INTEROP / MANIFEST["corrupt"][name]["path"])


@pytest.mark.parametrize("name", CHAINS)
def test_flipped_and_overwritten_bytes_are_read_or_refused_alike(name):
    objects = stored(CHAINS[name]).objects
    rng = np.random.default_rng(list(name.encode()))
    key = "c/0/0"
    payload_nbytes = len(objects[key]) - 16 * 8 - 4
    outcomes = set()
    for i in range(12):
        damaged = bytearray(objects[key])
        at = int(rng.integers(payload_nbytes if i % 2 else 40))
        if i % 3:
            damaged[at] ^= 1 << rng.integers(8)
        else:
            words = [0, 0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 20, 2048, 2049]
            word = int(rng.choice(words)).to_bytes(4, "little")
            damaged[at & ~3 : (at & ~3) + 4] = word
        store = held({**objects, key: bytes(damaged)})
        outcomes.add(assert_same_outcome(store))
    assert False in outcomes or name == "raw"


def test_several_threads_have_a_context_each(seen):
    options = FUSED.but(threads=4, batch_nbytes=2048)
    a = gpushard.open_array(held(stored([ZSTD, CRC]).objects), options=options)
    for _ in range(20):
        assert_same_bits(a[...], VALUES)
    assert_all_fused(seen)


def test_what_the_loops_cannot_do_goes_the_plain_way(seen, monkeypatch):
    store = held(stored([ZSTD]).objects)
    a = gpushard.open_array(store, options=FUSED)
    a[...]
    assert kind_of_sink(seen) is FusedSink
    a.read_many([([1, 50], [2, 70]), 3])
    assert kind_of_sink(seen) is HostSink
    a.oindex[[1, 50], [2, 70]]  # read as points
    assert kind_of_sink(seen) is FusedSink
    a.oindex[np.arange(60), np.arange(60)]  # picked from a grid
    assert kind_of_sink(seen) is FusedSink
    gpushard.open_array(store, options=PLAIN)[...]
    assert kind_of_sink(seen) is HostSink
    bz2 = held(stored([codec("numcodecs.bz2", level=1)]).objects)
    gpushard.open_array(bz2, options=FUSED)[...]
    assert kind_of_sink(seen) is HostSink
    monkeypatch.setattr(choice, "find_library", lambda _, **__: None)
    a[...]
    assert kind_of_sink(seen) is HostSink


@pytest.mark.parametrize("chain", [[ZSTD], []])
def test_rounded_floats_are_read_as_floats_are(chain, seen):
    rounded = [codec("numcodecs.bitround", keepbits=3), LITTLE]
    array = stored(chain, "float32", rounded)
    a = gpushard.open_array(held(array.objects), options=FUSED)
    want = BitRound(3).encode(VALUES.astype("f4")).view("f4")
    assert (want != VALUES).any()
    for key in (np.s_[...], np.s_[7:50, 3], np.s_[::-2, 80:3:-7]):
        assert_same_bits(a[key], want[key])
        assert kind_of_sink(seen) is FusedSink


@pytest.mark.parametrize(
    "chain",
    [[ZSTD, ZSTD], [codec("numcodecs.shuffle", elementsize=3), ZSTD]],
    ids=["compressed twice", "cut short by the shuffle"],
)
def test_a_chain_that_is_nearly_one_of_theirs_goes_the_plain_way(chain, seen):
    described = document((64,), (64,), sharding((16,), codecs=[LITTLE, *chain]))
    empty = held({"zarr.json": json.dumps(described).encode()})
    assert not gpushard.open_array(empty, options=FUSED)[...].any()
    assert kind_of_sink(seen) is HostSink


def test_small_reads_never_load_the_loops(seen, monkeypatch):
    def load(**_):
        raise AssertionError("loaded")

    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_load", load)
    monkeypatch.setattr(choice, "_counts", choice._ReadCounts())
    default = Options(small_read_chunks=0)
    gpushard.open_array(held(stored([ZSTD]).objects), options=default)[...]
    assert kind_of_sink(seen) is HostSink


@pytest.mark.parametrize("is_kept", [True, False])
def test_many_small_reads_load_the_loops_in_the_end(is_kept, seen, monkeypatch):
    loops = choice._load()
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_ready_loops", lambda: loops if is_kept else None)
    monkeypatch.setattr(choice, "_compiled_loops", lambda: loops)
    monkeypatch.setattr(choice._compiler, "run_once", lambda: True)
    monkeypatch.setattr(choice, "_counts", choice._ReadCounts())
    most = 5 * VALUES.nbytes * (64 if is_kept else 1)
    options = Options(small_read_chunks=0, compile_nbytes=most)
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=options)
    kinds = []
    for _ in range(7):
        a[...]
        kinds.append(kind_of_sink(seen))
    assert kinds[0] is HostSink
    assert kinds[-1] is FusedSink


def test_checksums_are_those_of_the_crc32c_package():
    from crc32c import crc32c

    from gpushard.fused.compiled import calls

    data = np.random.default_rng(1).integers(0, 256, 300, np.uint8)
    for nbytes in (0, 1, 7, 8, 9, 63, 64, 255):
        for start in range(9):
            part = data[start : start + nbytes]
            want = crc32c(part)
            for compute in (calls.crc32c, calls._crc32c_by_table):
                assert compute(address_of(data) + start, nbytes) == want


@pytest.mark.parametrize("kind", range(7))
def test_every_library_is_found(kind):
    assert find_library(kind) is not None
