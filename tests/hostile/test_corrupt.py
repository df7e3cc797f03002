"""Hostile bytes: right elements or an error of ours, nothing else, and never a hang."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import gpushard
from array_strategies import codec
from gpushard import Options
from zarr_oracle import StoredArray, held, write

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")

LITTLE, CRC = codec("bytes", endian="little"), {"name": "crc32c"}
ZSTD = codec("zstd", level=3, checksum=False)


def blosc(cname: str, shuffle: str = "shuffle") -> dict[str, Any]:
    return codec(
        "blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=4, blocksize=0
    )


CHAINS = {
    "raw": [LITTLE],
    "zstd": [LITTLE, ZSTD],
    "zstd with checksum": [LITTLE, codec("zstd", level=3, checksum=True)],
    "gzip": [LITTLE, codec("gzip", level=5)],
    "blosc lz4": [LITTLE, blosc("lz4")],
    "blosc blosclz": [LITTLE, blosc("blosclz", "bitshuffle")],
    "blosc zstd": [LITTLE, blosc("zstd", "noshuffle")],
    "blosc zlib": [LITTLE, blosc("zlib")],
    "crc32c": [LITTLE, CRC],
    "zstd then crc32c": [LITTLE, ZSTD, CRC],
    "numcodecs.lz4": [LITTLE, codec("numcodecs.lz4", acceleration=1)],
    "numcodecs.zlib": [LITTLE, codec("numcodecs.zlib", level=1)],
    "numcodecs.bz2": [LITTLE, codec("numcodecs.bz2", level=1)],
    "numcodecs.lzma": [LITTLE, codec("numcodecs.lzma")],
    "numcodecs.adler32": [LITTLE, codec("numcodecs.adler32")],
    "delta and shuffle": [
        codec("numcodecs.delta", dtype="<i4"),
        LITTLE,
        codec("numcodecs.shuffle", elementsize=4),
        ZSTD,
    ],
}
SHAPE, SHARD, CHUNK = (32, 32), [16, 32], [8, 16]
VALUES = (np.add.outer(np.arange(32) ** 2, np.arange(32) * 3) % 97).astype("i4")


def shard_codec(codecs: list[Any], *, index_crc: bool, chunk=CHUNK) -> dict[str, Any]:
    return codec(
        "sharding_indexed",
        chunk_shape=chunk,
        codecs=codecs,
        index_codecs=[LITTLE, CRC] if index_crc else [LITTLE],
        index_location="end",
    )


def stored(*codecs: Any) -> StoredArray:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    }
    return write(document, [((slice(None),) * 2, VALUES)])


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bits flipped, bytes overwritten, cut off or added."""
    bytes_ = bytearray(data)
    kind = rng.integers(6)
    at = int(rng.integers(len(bytes_)))
    if kind < 3:
        for _ in range(int(rng.integers(1, 4))):
            bytes_[int(rng.integers(len(bytes_)))] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        n = int(rng.integers(1, 40))
        bytes_[at : at + n] = rng.bytes(len(bytes_[at : at + n]))
    elif kind == 4:
        del bytes_[at:]
    else:
        bytes_[at:at] = rng.bytes(int(rng.integers(1, 20)))
    return bytes(bytes_)


def chunk_bytes(data: bytes, whole: StoredArray, k: int) -> bytes:
    """Stored bytes of inner chunk `k` of a shard of four, by the good index."""
    index = np.frombuffer(whole.objects["c/0/0"][-68:-4], "<u8").reshape(4, 2)
    offset, nbytes = index[k].tolist()
    return data[offset : offset + nbytes]


@pytest.mark.parametrize("name", CHAINS)
def test_damage_in_a_shard_gives_right_elements_or_an_error_of_ours(name):
    good = stored(shard_codec(CHAINS[name], index_crc=True))
    shard = good.objects["c/0/0"]
    rng = np.random.default_rng(len(name))
    n_errors = 0
    for case in range(30):
        bad = damaged(shard, rng)
        options = Options(small_read_chunks=8 if case % 2 else 0)
        objects = {**good.objects, "c/0/0": bad}
        a = gpushard.open_array(held(objects), options=options)
        n_errors += not reads_whole(a)
        same_index = len(bad) == len(shard) and bad[-68:] == shard[-68:]
        for k, (i, j) in enumerate(np.ndindex(2, 2)):
            key = np.s_[8 * i : 8 * i + 8, 16 * j : 16 * j + 16]
            try:
                got = a[key]
            except gpushard.GpushardError as error:
                assert_tells(error)
                # Only an inner chunk that was hit may fail.
                assert not same_index or chunk_bytes(bad, good, k) != chunk_bytes(
                    shard, good, k
                )
                continue
            if same_index and chunk_bytes(bad, good, k) == chunk_bytes(shard, good, k):
                assert np.array_equal(got, VALUES[key])
            if name in DETECTING:
                assert np.array_equal(got, VALUES[key])
        assert np.array_equal(a[16:], VALUES[16:])  # the other shard
    # Without any checksum only damage to the index and to the size is an error.
    assert n_errors > (3 if name == "raw" else 9)


# Chains that notice any of these damages.
DETECTING = ("crc32c", "zstd then crc32c")


def reads_whole(a: gpushard.Array) -> bool:
    try:
        a[...]
    except gpushard.GpushardError as error:
        assert_tells(error)
        return False
    return True


def assert_short(error: gpushard.GpushardError) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 700


def assert_tells(error: gpushard.GpushardError) -> None:
    assert isinstance(error, gpushard.CorruptShardError)
    assert error.shard_key == "c/0/0"
    assert_short(error)
    text = str(error)
    # Nothing of the machinery shines through.
    assert not re.search(r"Traceback|object at 0x|<class", text)


@pytest.mark.parametrize("where", ["memory", "remote", "local"])
@pytest.mark.parametrize(
    "codecs",
    [
        [shard_codec([LITTLE, ZSTD], index_crc=False)],
        [
            shard_codec(
                [shard_codec([LITTLE], index_crc=False, chunk=[4, 4])], index_crc=False
            )
        ],
        [shard_codec([LITTLE], index_crc=True), ZSTD],
        [LITTLE, ZSTD],
        [LITTLE],
    ],
    ids=["no checksum", "nested", "codec around", "unsharded", "unsharded raw"],
)
def test_damage_without_any_checksum_never_ends_in_another_error(
    codecs, where, tmp_path
):
    good = stored(*codecs)
    shard = good.objects["c/0/0"]
    rng = np.random.default_rng(11)
    for _ in range(20):
        bad = damaged(shard, rng)
        store = StoredArray({**good.objects, "c/0/0": bad}, good.full).placed(
            where, tmp_path
        )
        a = gpushard.open_array(store)
        for key in (..., np.s_[3, 5], np.s_[0:12:5, ::-1]):
            try:
                got = a[key]
            except gpushard.CorruptShardError as error:
                assert_tells(error)
            else:
                assert got.shape == VALUES[key].shape


@pytest.mark.parametrize("n", [0, 8])
def test_an_entry_far_larger_than_its_inner_chunk_is_refused_unread(n, tmp_path):
    good = stored(shard_codec([LITTLE, ZSTD], index_crc=False))
    place = good.placed("local", tmp_path)
    n_bytes = 1 << 28
    index = np.array([(0, n_bytes)] * 4, "<u8").tobytes()
    with (place / "c/0/0").open("wb") as file:  # a sparse file: it takes no space
        file.seek(n_bytes)
        file.write(index)
    a = gpushard.open_array(place, options=Options(small_read_chunks=n))
    with pytest.raises(gpushard.CorruptShardError, match="more bytes") as caught:
        a[0:8, 0:16]
    assert_tells(caught.value)
    assert caught.value.inner_chunk == (0, 0)
    assert caught.value.got == n_bytes


@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_an_uncompressed_chunk_of_another_size_is_refused(change, tmp_path):
    good = stored(LITTLE)
    path = good.placed("local", tmp_path)
    data = good.objects["c/0/0"]
    wrong = data[:change] if change < 0 else data + bytes(change)
    (path / "c/0/0").write_bytes(wrong)
    a = gpushard.open_array(path)
    for key in (..., np.s_[0, 0], np.s_[3:5]):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[key]
        assert_tells(caught.value)
    assert np.array_equal(a[16:], VALUES[16:])


@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize("size", [1, 17, 30, 5000])
@pytest.mark.parametrize("where", ["local", "memory"])
def test_the_size_told_of_an_uncompressed_chunk_is_the_objects(
    where, size, n, tmp_path
):
    good = stored(LITTLE)
    objects = {**good.objects, "c/0/0": bytes(size)}
    place = held(objects)
    if where == "local":
        place = good.placed("local", tmp_path)
        (place / "c/0/0").write_bytes(bytes(size))
    a = gpushard.open_array(place, options=Options(small_read_chunks=n))
    # Zarr stores tell no sizes: a part of a chunk cannot be told from that of another.
    parts = () if where == "memory" else (np.s_[0, 0], np.s_[3:5], np.s_[7:8, 3:])
    for key in (..., *parts):
        with pytest.raises(gpushard.CorruptShardError) as caught:
            a[key]
        assert caught.value.got == f"{size} bytes"


def test_flipped_bits_in_metadata_never_end_in_another_error():
    good = stored(shard_codec([LITTLE, ZSTD], index_crc=True))
    text = good.objects["zarr.json"]
    rng = np.random.default_rng(3)
    for _ in range(400):
        bad = damaged(text, rng)
        try:
            a = gpushard.open_array(held({**good.objects, "zarr.json": bad}))
            a[0, 0] if a.ndim == 2 and a.size else None
        except gpushard.GpushardError as error:
            assert_short(error)


JSON_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    "",
    "x" * 100,
    [],
    [[]],
    {},
    {"name": 1},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document values stand."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, item in below:
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
        else:
            found.append((*path, key))
    return found


def test_wrong_values_anywhere_in_metadata_never_end_in_another_error():
    good = stored(
        shard_codec([codec("transpose", order=[1, 0]), LITTLE, ZSTD], index_crc=True)
    )
    n_refused = 0
    for path in places(good.document):
        for value in JSON_VALUES:
            document = good.document
            inner: Any = document
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            text = json.dumps(document).encode()
            try:
                a = gpushard.open_array(held({**good.objects, "zarr.json": text}))
                a[(0,) * a.ndim] if a.size else None
            except gpushard.GpushardError as error:
                n_refused += 1
                assert_short(error)
    assert n_refused > 200


def cut(shard: bytes) -> bytes:
    return shard[:50]


def with_another_index(shard: bytes) -> bytes:
    return shard[:-68] + b"\1" * 8 + shard[-60:]


def with_another_stream(shard: bytes) -> bytes:
    """The inner chunk at (0, 0) begins with zeros."""
    start = int(np.frombuffer(shard[-68:-4], "<u8")[0])
    return shard[:start] + bytes(8) + shard[start + 8 :]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            cut,
            "the shard is too short to hold its index (array '{url}', shard 'c/0/0'):"
            " expected 68 bytes of index, got 50 bytes; ",
        ),
        (
            with_another_index,
            "stored bytes contradict their checksum (array '{url}', shard 'c/0/0',"
            " codec 'crc32c'): expected 0x",
        ),
        (
            with_another_stream,
            "(array '{url}', shard 'c/0/0', inner chunk (0, 0), codec 'zstd')",
        ),
    ],
)
def test_the_sentence_says_what_where_expected_got_and_what_to_do(
    damage, expected, tmp_path
):
    good = stored(shard_codec([LITTLE, ZSTD], index_crc=True))
    objects = {**good.objects, "c/0/0": damage(good.objects["c/0/0"])}
    # zarr 3.1's memory store miscounts the last bytes of an object that has fewer.
    place = StoredArray(objects, good.full).placed("local", tmp_path)
    a = gpushard.open_array(place)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        a[...]
    assert expected.format(url=a.source.store.url) in str(caught.value)
    assert caught.value.hint


def test_a_truncated_shard_is_what_zarrs_own_tests_expect():
    good = stored(shard_codec([LITTLE], index_crc=True))
    a = gpushard.open_array(held({**good.objects, "c/0/0": b"short"}))
    with pytest.raises(ValueError, match="too short to hold its index"):
        a[...]
