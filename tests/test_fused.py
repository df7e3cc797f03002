"""The compiled loops give what the plain way of the host gives, bit for bit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec, stored_arrays
from gpushard import Options, results
from gpushard.fused import choice
from gpushard.fused.libraries import address_of, find_library
from gpushard.fused.sink import FusedSink
from gpushard.place import HostSink
from selection_strategies import basic_keys, orthogonal_keys, take_orthogonal
from zarr_oracle import StoredArray, assert_same_bits, held, write

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")
pytest.importorskip("cffi", reason="zstandard's C interface needs cffi (extra `fast`)")
pytest.importorskip("blosc2", reason="libblosc2 ships with blosc2 (extra `fast`)")

# zarr 3.1 says so wherever one of numcodecs' codecs is made.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

SAMPLES = Path(__file__).parent / "data" / "interop"
MANIFEST: dict[str, Any] = json.loads((SAMPLES / "manifest.json").read_text())
# One thread, so that of several damaged inner chunks the same one is met first.
FUSED = Options(compile_nbytes=0, small_read_chunks=0, threads=1)
PLAIN = FUSED.but(compile_nbytes=2**62)
LITTLE, CRC = codec("bytes", endian="little"), {"name": "crc32c"}


def blosc(cname: str, shuffle: str, blocksize: int = 0) -> dict[str, Any]:
    kinds = {"typesize": 4, "blocksize": blocksize}
    return codec("blosc", cname=cname, clevel=5, shuffle=shuffle, **kinds)


ZSTD = codec("zstd", level=3, checksum=False)
LZ4 = codec("numcodecs.lz4", acceleration=1)
CHAINS = {
    "raw": [],
    "crc32c": [CRC],
    "zstd": [ZSTD],
    "zstd, crc32c": [ZSTD, CRC],
    "lz4": [LZ4],
    **{
        f"blosc {name} {shuffle} {blocksize}": [blosc(name, shuffle, blocksize)]
        for name, shuffle, blocksize in itertools.product(
            ["lz4", "blosclz", "zlib", "zstd"],
            ["noshuffle", "shuffle", "bitshuffle"],
            [0, 512],
        )
    },
}
SHAPE, SHARD, CHUNK = (100, 90), (64, 64), (32, 16)
VALUES = np.add.outer(np.arange(100) ** 2, np.arange(90) * 3).astype("i4") % 997


def stored(
    chain: list[Any], dtype: str = "int32", before: Any = (LITTLE,)
) -> StoredArray:
    sharding = codec(
        "sharding_indexed",
        chunk_shape=CHUNK,
        codecs=[*before, *chain],
        index_codecs=[LITTLE, CRC],
        index_location="end",
    )
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": SHARD},
        },
        "chunk_key_encoding": {
            "name": "default",
            "configuration": {"separator": "/"},
        },
        "fill_value": {"bool": False, "complex64": [0, 0]}.get(dtype, 0),
        "codecs": [sharding],
        "attributes": {},
    }
    return write(document, [(..., VALUES.astype(dtype))])


class Seen:
    """Which sinks were made, and how many inner chunks the loops left over."""

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.n_left = 0


@pytest.fixture
def seen(monkeypatch):
    seen = Seen()

    def host_sink(*args):
        seen.sinks.append(choice.host_sink(*args))
        return seen.sinks[-1]

    def place_some(self, job, ranged, answer, rows):
        seen.n_left += len(rows)
        return plain(self, job, ranged, answer, rows)

    plain = HostSink.place_some
    monkeypatch.setattr(results, "host_sink", host_sink)
    monkeypatch.setattr(HostSink, "place_some", place_some)
    return seen


def assert_all_fused(seen: Seen) -> None:
    assert seen.sinks
    assert all(isinstance(sink, FusedSink) for sink in seen.sinks)
    assert seen.n_left == 0


@pytest.mark.parametrize("name", CHAINS)
def test_the_loops_read_every_inner_chunk_of_a_chain_they_know(name, seen):
    a = gpushard.open_array(held(stored(CHAINS[name]).objects), options=FUSED)
    assert_same_bits(a[...], VALUES)
    assert_same_bits(a[::-3, 5:80:2], VALUES[::-3, 5:80:2])
    rows = [99, 3, 3, 50, 0]
    assert_same_bits(a.oindex[rows, 7:], VALUES[rows, 7:])
    assert_all_fused(seen)


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
    assert_all_fused(seen)


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
    path = SAMPLES / MANIFEST["valid"][name]["path"]
    a = gpushard.open_array(path, options=FUSED)
    assert_same_bits(a[...], gpushard.open_array(path, options=PLAIN)[...])


def outcome(store: Any, options: Options) -> Any:
    """Elements, or type and text of the error."""
    try:
        return gpushard.open_array(store, options=options)[...]
    except gpushard.GpushardError as error:
        return type(error), str(error)


def assert_same_outcome(store: Any) -> bool:
    """Whether the array can be read at all."""
    got, want = outcome(store, FUSED), outcome(store, PLAIN)
    if isinstance(want, tuple):
        assert isinstance(got, tuple)
        assert got == want
        return False
    assert isinstance(got, np.ndarray)
    assert_same_bits(got, want)
    return True


@pytest.mark.parametrize("name", sorted(MANIFEST["corrupt"]))
def test_damaged_samples_are_refused_alike(name):
    assert_same_outcome(SAMPLES / MANIFEST["corrupt"][name]["path"])


@pytest.mark.parametrize("name", CHAINS)
def test_flipped_and_overwritten_bytes_are_read_or_refused_alike(name):
    objects = stored(CHAINS[name]).objects
    rng = np.random.default_rng(list(name.encode()))
    key = "c/0/0"
    payload_nbytes = len(objects[key]) - 16 * 8 - 4
    outcomes = set()
    for i in range(60):
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


def test_a_stream_that_the_loops_refuse_is_read_the_plain_way(seen):
    """An LZ4 block longer than what it decodes to is left to numcodecs."""
    noise = np.random.default_rng(0).integers(0, 1 << 31, SHAPE).astype("i4")
    array = stored([LZ4])
    with_noise = write(json.loads(array.objects["zarr.json"]), [(..., noise)])
    a = gpushard.open_array(held(with_noise.objects), options=FUSED)
    assert_same_bits(a[...], noise)
    assert isinstance(seen.sinks[0], FusedSink)
    assert seen.n_left > 0


def test_a_gather_too_dense_for_boxes_is_left_to_the_plain_way(seen):
    a = gpushard.open_array(held(stored([ZSTD]).objects), options=FUSED)
    rows = np.sort(np.arange(400) % 100)
    assert_same_bits(a.oindex[rows, 7:], VALUES[rows, 7:])
    assert isinstance(seen.sinks[0], FusedSink)
    assert seen.n_left > 0


def test_several_threads_have_a_context_each(seen):
    options = FUSED.but(threads=4, batch_nbytes=2048)
    a = gpushard.open_array(held(stored([ZSTD, CRC]).objects), options=options)
    for _ in range(20):
        assert_same_bits(a[...], VALUES)
    assert_all_fused(seen)


def kind_of_sink(seen: Seen) -> type:
    return type(seen.sinks.pop())


def test_what_the_loops_cannot_do_goes_the_plain_way(seen, monkeypatch):
    store = held(stored([ZSTD]).objects)
    a = gpushard.open_array(store, options=FUSED)
    a[...]
    assert kind_of_sink(seen) is FusedSink
    a.read(dtype="f8")
    assert kind_of_sink(seen) is HostSink
    a.vindex[[1, 50], [2, 70]]
    assert kind_of_sink(seen) is HostSink
    a.oindex[[1, 50], [2, 70]]
    assert kind_of_sink(seen) is HostSink
    gpushard.open_array(store, options=PLAIN)[...]
    assert kind_of_sink(seen) is HostSink
    gzip = held(stored([codec("gzip", level=1)]).objects)
    gpushard.open_array(gzip, options=FUSED)[...]
    assert kind_of_sink(seen) is HostSink
    monkeypatch.setattr(choice, "find_library", lambda _: None)
    a[...]
    assert kind_of_sink(seen) is HostSink


def test_small_reads_never_load_the_loops(seen, monkeypatch):
    def load():
        raise AssertionError("loaded")

    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_load", load)
    default = Options(small_read_chunks=0)
    gpushard.open_array(held(stored([ZSTD]).objects), options=default)[...]
    assert kind_of_sink(seen) is HostSink


def test_checksums_are_those_of_the_crc32c_package():
    from crc32c import crc32c

    from gpushard.fused import calls

    data = np.random.default_rng(1).integers(0, 256, 300, np.uint8)
    for nbytes in (0, 1, 7, 8, 9, 63, 64, 255):
        for start in range(9):
            part = data[start : start + nbytes]
            want = crc32c(part)
            for compute in (calls.crc32c, calls._crc32c_by_table):
                assert compute(address_of(data) + start, nbytes) == want


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_the_loops_do_without_a_folder_to_be_kept_in(error, monkeypatch):
    from gpushard.fused import loops

    def compiled(_stamp, *, keeps):
        if keeps:
            raise error("no locator available")
        return "compiled here"

    monkeypatch.setattr(loops, "_compiled", compiled)
    monkeypatch.setattr(loops, "_warm", lambda place_boxes: place_boxes)
    assert loops.load_place_boxes() == "compiled here"


@pytest.mark.parametrize("kind", range(4))
def test_every_library_is_found(kind):
    assert find_library(kind) is not None
