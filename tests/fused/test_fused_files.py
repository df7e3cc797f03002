"""The compiled loops read local files themselves, and read what the plain way reads."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
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
    need_fast_packages,
    stored,
)
from gpushard.fused import files, placer
from gpushard.fused.columns import FILE, HANDLE
from gpushard.fused.placer import BoxPlacer
from gpushard.fused.short import one_call
from gpushard.fused.short.one_call import OneCall
from gpushard.fused.thread_memory import ThreadMemory
from selection_strategies import basic_keys, orthogonal_keys, take_orthogonal
from spec_shards import document, index_of, shard_of, sharding
from zarr_oracle import StoredArray, assert_same_bits, write

need_fast_packages()

pytestmark = [
    pytest.mark.usefixtures("way"),
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
]

KEYS = [
    np.s_[...],
    np.s_[5:70, 3:85],
    np.s_[::-3, 5:80:2],
    np.s_[64:, 64:],
    np.s_[31:33, ::-1],
    np.s_[7],
]


@pytest.fixture
def runs(monkeypatch):
    """Files that each call of the loops read from."""
    runs: list[set[int]] = []

    def run(self, columns, *how):
        runs.append(set(columns[:, FILE].tolist()))
        return plain(self, columns, *how)

    def read_axes(self, planned, wanted, rows):
        runs.append(set(rows[:, HANDLE].tolist()))
        return plain_axes(self, planned, wanted, rows)

    plain, plain_axes = BoxPlacer.run, OneCall.read_axes
    monkeypatch.setattr(BoxPlacer, "run", run)
    monkeypatch.setattr(OneCall, "read_axes", read_axes)
    return runs


@pytest.fixture
def tiny_window(monkeypatch):
    """As small as the largest inner chunk allows."""
    monkeypatch.setattr(files, "WINDOW_NBYTES", 1)
    monkeypatch.setattr(placer, "_memory", ThreadMemory())


def placed(root: Path, document: dict[str, Any], **shards: bytes) -> Path:
    """`root`, with an array of shards ``c/0/1=...`` in it."""
    objects = {"zarr.json": json.dumps(document).encode()}
    objects |= {f"c/{k.replace('_', '/')}": data for k, data in shards.items()}
    root.mkdir(exist_ok=True)
    return StoredArray(objects, np.empty(0)).placed("local", root)


def assert_reads(place: Path, want: np.ndarray, keys: Any, options=FUSED) -> None:
    a = gpushard.open_array(place, options=options)
    for key in keys:
        assert_same_bits(a[key], want[key])
    n = len(want)
    rows = [n - 1, 3, 3, n // 2, 0]
    assert_same_bits(a.oindex[rows, 7:], want[rows, 7:])
    assert_same_bits(a.oindex[2:, [80, 1, 1, 40]], want[2:, [80, 1, 1, 40]])
    many = [np.s_[:9, ::2], np.s_[2:40, 7:61], np.s_[-30:, ::-5], np.s_[2:40, 60]]
    for got, key in zip(a.read_many(many), many, strict=True):
        assert_same_bits(got, want[key])


@pytest.mark.parametrize(
    ("name", "threads"),
    [*((name, 1) for name in CHAINS), *((name, 3) for name in ("raw", "zstd", "lz4"))],
)
def test_every_chain_is_read_from_files(name, threads, seen, runs, tmp_path):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    assert_reads(place, VALUES, KEYS, FUSED.but(threads=threads))
    assert_all_fused(seen)
    assert all(min(some) >= 0 for some in runs)


@pytest.mark.parametrize("name", ["raw", "zstd", "lz4", "blosc lz4 noshuffle 0"])
def test_every_window_is_refilled(name, seen, runs, tiny_window, tmp_path):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    assert_reads(place, VALUES, KEYS)
    assert_all_fused(seen)


def test_inner_chunks_larger_than_the_window_go_the_plain_way(
    seen, monkeypatch, tmp_path
):
    monkeypatch.setattr(placer, "_memory", ThreadMemory())
    plain = BoxPlacer.run
    monkeypatch.setattr(
        BoxPlacer,
        "run",
        lambda self, columns, _, *shares: plain(self, columns, 0, *shares),
    )
    monkeypatch.setattr(one_call, "window_nbytes", lambda *_: 0)
    place = stored([ZSTD]).placed("local", tmp_path)
    assert_reads(place, VALUES, KEYS)
    assert seen.n_left > 0


@pytest.mark.parametrize("dtype", ["bool", "int16", "complex64", "float64"])
@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("chain", ["raw", "zstd"])
def test_byte_orders_and_transposes_are_read_from_files(
    dtype, order, chain, seen, tiny_window, tmp_path
):
    before = [codec("transpose", order=[1, 0]), codec("bytes", endian=order)]
    place = stored(CHAINS[chain], dtype, before).placed("local", tmp_path)
    assert_reads(place, VALUES.astype(dtype), KEYS)
    assert_all_fused(seen)


# Plain elements: only what is wanted of an inner chunk is read.

LARGE = np.random.default_rng(5).integers(0, 1 << 16, (512, 128)).astype("u2")
LARGE_KEYS = [
    np.s_[0:3, ::2],
    np.s_[200:204, ::3],
    np.s_[250:260, ::2],
    np.s_[100:400:90, 5:9],
    np.s_[::-1, 7],
    np.s_[...],
]


def large(endian: str, *, shared: bool = False) -> tuple[Any, bytes, np.ndarray]:
    """Two inner chunks of 64 KiB, or one that both index entries name."""
    inner = sharding((256, 128), codecs=[codec("bytes", endian=endian)])
    here = document((512, 128), (512, 128), inner, dtype="uint16")
    halves = LARGE[:256], LARGE[256:]
    first, second = (
        half.astype(">u2" if endian == "big" else "<u2").tobytes() for half in halves
    )
    if not shared:
        return here, shard_of(first, second), LARGE
    n = len(first)
    shard = first + index_of([(0, n), (0, n)])
    return here, shard, np.concatenate([halves[0]] * 2)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("shared", [False, True])
def test_different_spans_of_one_inner_chunk_are_read(endian, shared, seen, tmp_path):
    here, shard, want = large(endian, shared=shared)
    a = gpushard.open_array(placed(tmp_path, here, **{"0_0": shard}), options=FUSED)
    for key in LARGE_KEYS:
        assert_same_bits(a[key], want[key])
    for keys in itertools.permutations(LARGE_KEYS, 2):
        for got, key in zip(a.read_many(keys), keys, strict=True):
            assert_same_bits(got, want[key])
    assert_all_fused(seen)


shapes = st.sampled_from([(4, 6), (64, 64), (16, 2)])


@given(shapes, st.sampled_from(["uint8", "int16"]), st.integers(0, 2**32), st.data())
def test_ranges_in_any_order_that_overlap_and_leave_gaps_are_read(
    tmp_path_factory, chunk, dtype, seed, data
):
    rng = np.random.default_rng(seed)
    n = int(np.prod(chunk)) * np.dtype(dtype).itemsize
    blob = rng.bytes(n * int(rng.integers(1, 12)) + int(rng.integers(0, 9000)))
    # Where there is one column, inner chunks are read straight into the output.
    grid = data.draw(st.sampled_from([(3, 2), (6, 1)]))
    spread = data.draw(st.sampled_from([1, n // 2, n, len(blob)]))
    offsets = rng.integers(0, len(blob) - n + 1, 6) // spread * spread
    entries = [(int(offset), n) for offset in offsets]
    if data.draw(st.booleans()):
        entries[2] = (2**64 - 1, 2**64 - 1)
    shape = (chunk[0] * grid[0], chunk[1] * grid[1])
    endian = data.draw(st.sampled_from(["little", "big"]))
    start = data.draw(st.booleans())
    inner = sharding(chunk, codecs=[codec("bytes", endian=endian)])
    if start:
        inner["configuration"]["index_location"] = "start"
        nbytes = len(index_of(entries))
        moved = [(o + nbytes if o < len(blob) else o, s) for o, s in entries]
        shard = index_of(moved) + blob
    else:
        shard = blob + index_of(entries)
    here = document(shape, shape, inner, dtype=dtype, fill_value=7)
    stored_dtype = np.dtype(dtype).newbyteorder(">" if endian == "big" else "<")
    want = np.full(shape, 7, dtype)
    for i, (offset, _) in enumerate(entries):
        if offset >= len(blob):
            continue
        at = tuple(
            slice(k * c, (k + 1) * c)
            for k, c in zip(divmod(i, grid[1]), chunk, strict=True)
        )
        elements = np.frombuffer(blob, stored_dtype, n // stored_dtype.itemsize, offset)
        want[at] = elements.reshape(chunk)
    root = tmp_path_factory.mktemp("a")
    a = gpushard.open_array(placed(root, here, **{"0_0": shard}), options=FUSED)
    assert_same_bits(a[...], want)
    keys = [data.draw(basic_keys(shape)) for _ in range(3)]
    for got, key in zip(a.read_many(keys), keys, strict=True):
        assert_same_bits(got, want[key])
    across = data.draw(orthogonal_keys(shape))
    assert_same_bits(a.oindex[across], take_orthogonal(want, across))


def test_compressed_inner_chunks_in_any_order_are_read(seen, tmp_path):
    array = stored([ZSTD])
    objects = dict(array.objects)
    rng = np.random.default_rng(2)
    for key in [k for k in objects if k.startswith("c/")]:
        shard, n = objects[key], 8
        entries = np.frombuffer(shard[-16 * n - 4 : -4], "<u8").reshape(n, 2)
        body, moved = rng.bytes(100), [(2**64 - 1, 2**64 - 1)] * n
        for i in rng.permutation(n).tolist():
            start, nbytes = map(int, entries[i])
            if start < 2**63:
                moved[i] = len(body), nbytes
                body += shard[start : start + nbytes]
                body += rng.bytes(int(rng.integers(0, 9000)))
        objects[key] = body + index_of(moved)
    place = StoredArray(objects, VALUES).placed("local", tmp_path)
    assert_reads(place, VALUES, KEYS)
    assert_all_fused(seen)


# Many files, nested shards, damage.


def test_a_task_keeps_few_of_its_files_open(way, runs, seen, tmp_path):
    values = np.arange(100 * 4 * 8, dtype="i4").reshape(400, 8)
    inner = sharding((2, 4), codecs=[LITTLE, ZSTD])
    here = document((400, 8), (4, 8), inner, dtype="int32")
    place = write(here, [(..., values)]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=FUSED.but(file_handles=1))
    assert_same_bits(a[...], values)
    assert_same_bits(a[::-5, 1::3], values[::-5, 1::3])
    assert_all_fused(seen)
    n_files = [64, 36, 64, 16]  # which the short way is none for
    if way == "requests":
        n_files = [32, 32, 32, 4, 32, 32, 16]
    assert [len(some) for some in runs] == n_files


@pytest.mark.skipif(
    zarr.__version__ == "3.1.0", reason="zarr 3.1.0 writes nested shards wrong"
)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("chain", ["raw", "zstd"])
def test_nested_shards_are_read_from_files(location, chain, seen, runs, tmp_path):
    innermost = sharding(
        (8, 8), codecs=[LITTLE, *CHAINS[chain]], index_location=location
    )
    inner = sharding((32, 16), codecs=[innermost], index_location=location)
    here = document((100, 90), (64, 64), inner, dtype="int32")
    place = write(here, [(..., VALUES)]).placed("local", tmp_path)
    assert_reads(place, VALUES, KEYS)
    assert_all_fused(seen)
    assert all(min(some) >= 0 for some in runs)


@pytest.mark.parametrize("name", ["raw", "crc32c", "zstd", "lz4", "gzip"])
def test_damaged_and_truncated_files_are_read_or_refused_alike(name, tmp_path):
    place = stored(CHAINS[name]).placed("local", tmp_path)
    file = place / "c/0/0"
    whole = file.read_bytes()
    rng = np.random.default_rng(1)
    n_payload = len(whole) - 16 * 8 - 4
    outcomes = set()
    for i in range(20):
        damaged = bytearray(whole)
        if i % 4 == 0:
            del damaged[int(rng.integers(len(whole))) :]
        elif i % 4 == 1:
            # The index is whole, and names what is not there.
            del damaged[int(rng.integers(n_payload)) : n_payload]
        else:
            damaged[int(rng.integers(len(whole)))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        outcomes.add(assert_same_outcome(place))
    assert False in outcomes


@pytest.mark.parametrize("options", [FUSED, PLAIN], ids=["loops", "plain"])
def test_of_damaged_inner_chunks_the_first_in_the_file_is_named(options, tmp_path):
    here = document(
        (32, 32), (32, 32), sharding((16, 16), codecs=[LITTLE, CRC]), dtype="uint16"
    )
    missing = 2**64 - 1, 2**64 - 1
    shard = bytes(2 * 516) + index_of([missing, (516, 516), (0, 516), missing])
    place = placed(tmp_path, here, **{"0_0": shard})
    with pytest.raises(gpushard.CorruptShardError, match="checksum") as caught:
        gpushard.open_array(place, options=options)[...]
    assert caught.value.inner_chunk == (1, 0)


@pytest.mark.parametrize("shape", [(16, 32), (32, 16)])
def test_entries_of_another_size_are_refused_alike(shape, tmp_path):
    for first, second in ((512, 512), (512, 0), (512, 1), (512, 513), (511, 512)):
        here = document(shape, shape, sharding((16, 16)), dtype="uint16")
        shard = bytes(1024) + index_of([(0, first), (first, second)])
        place = placed(tmp_path, here, **{"0_0": shard})
        assert assert_same_outcome(place) == (first == second)
        shutil.rmtree(place)


def test_only_local_files_are_read_by_the_loops(runs, tmp_path):
    array = stored([ZSTD])
    place = array.placed("local", tmp_path)
    for store, options in ((place, FUSED), (array.placed("memory", tmp_path), FUSED)):
        a = gpushard.open_array(store, options=options)
        assert_same_bits(a[...], VALUES)
        assert all((min(some) >= 0) == (store is place) for some in runs)
        assert runs
        runs.clear()
    assert_same_bits(gpushard.open_array(place, options=PLAIN)[...], VALUES)
    assert not runs


def test_boxes_that_seem_to_go_on_are_told_apart(seen, tmp_path):
    """In another file, in the same place of it, and of other rows."""
    body = np.random.default_rng(6).integers(0, 256, (2, 16, 16), np.uint8)
    one, two = (half.tobytes() for half in body)
    inner, want = sharding((16, 16)), body.reshape(32, 16)
    here = document((32, 16), (16, 16), inner)
    for pad in (b"", bytes(256)):
        second = pad + two + index_of([(len(pad), 256)])
        shards = {"0_0": shard_of(one), "1_0": second}
        a = gpushard.open_array(placed(tmp_path, here, **shards), options=FUSED)
        for key in (np.s_[...], np.s_[:, ::2], np.s_[3:29, 1:]):
            assert_same_bits(a[key], want[key])
    # With a checksum behind, what is decoded serves all boxes of an inner chunk.
    here = document((32, 16), (16, 16), sharding((16, 16), codecs=[LITTLE, CRC]))
    summed = [half + crc32c(half).to_bytes(4, "little") for half in (one, two)]
    shards = {f"{i}_0": shard_of(data) for i, data in enumerate(summed)}
    a = gpushard.open_array(placed(tmp_path, here, **shards), options=FUSED)
    assert_same_bits(a[:, ::2], want[:, ::2])
    here = document((4, 8), (4, 8), sharding((2, 8)))
    rest = bytes(range(27))
    shard = rest + index_of([(0, 16), (11, 16)])
    a = gpushard.open_array(placed(tmp_path, here, **{"0_0": shard}), options=FUSED)
    halves = rest[:16], rest[11:]
    want = np.frombuffer(b"".join(halves), np.uint8).reshape(4, 8)
    assert_same_bits(a[1:, 5:], want[1:, 5:])
    assert_all_fused(seen)
