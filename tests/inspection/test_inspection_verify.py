"""Verification of arrays: what is told, of what, and what is not looked at."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import gpushard
from gpushard.cli.verify_report import report_rows
from gpushard.inspection.contents import contents_of
from gpushard.inspection.verify import verify_array
from gpushard.options import MIB
from places import INTEROP
from range_server import RangeServer
from s3_server import make_bucket, s3_server
from zarr_oracle import held

MANIFEST = json.loads((INTEROP / "manifest.json").read_text())
KNOWN = [(e["path"], "") for e in MANIFEST["valid"].values()] + [
    (e["path"], e.get("array_path", ""))
    for family in MANIFEST["legacy"].values()
    for e in family["arrays"].values()
]


def verified(place, path="", *, decodes=True, **options):
    options = gpushard.Options(**options)
    return verify_array(
        gpushard.open_array(place, path, options=options).source, decodes=decodes
    )


def made(place, **given) -> zarr.Array:
    """Array of nine shards of 4 x 4 inner chunks, all of them stored."""
    default = {
        "shape": (48, 48),
        "chunks": (4, 4),
        "shards": (16, 16),
        "dtype": "u4",
        "fill_value": 0,
    }
    z = zarr.create_array(place, **default | given)
    z[...] = 1 + np.arange(z.size, dtype="u4").reshape(z.shape)
    return z


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


def told(result) -> list[tuple]:
    return [(f.kind, f.shard_key, f.inner_chunk) for f in result.findings]


@pytest.mark.parametrize(("path", "array"), KNOWN)
def test_samples_of_every_format_are_whole(path, array):
    result = verified(INTEROP / path, array)
    assert (result.status, [f for f in result.findings if f.kind != "overlap"]) == (
        "whole",
        [],
    )
    counts = result.counts
    assert counts["n_checked_inner_chunks"] == counts["n_inner_chunks"]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in MANIFEST["corrupt"].items()
        if entry.get("full") == "error" and entry["cls"] not in ("metadata", "store")
    ],
)
def test_damaged_samples_are_told_with_the_place(name):
    entry = MANIFEST["corrupt"][name]
    result = verified(INTEROP / entry["path"])
    assert result.status == "damaged"
    (found,) = [found for found in result.findings if found.is_damage]
    is_in_index = entry["same_shard_want"] == "error"
    assert found.shard_key == "c/0/0"
    assert (found.inner_chunk is None) == is_in_index
    assert found.message
    if not is_in_index:
        assert found.inner_chunk == (0, 0)


def test_each_damaged_inner_chunk_is_told_and_no_other(tmp_path):
    made(tmp_path / "a", compressors=[ZstdCodec(checksum=True)])
    index = np.fromfile(tmp_path / "a/c/1/2", np.uint8)[-260:-4].view("<u8")
    offset, nbytes = index.reshape(16, 2)[6].tolist()
    flip(tmp_path / "a/c/1/2", offset + nbytes - 2)
    flip(tmp_path / "a/c/2/0", -1)
    result = verified(tmp_path / "a")
    assert told(result) == [("checksum", "c/1/2", (5, 10)), ("index", "c/2/0", None)]
    assert result.n_damaged_inner_chunks == 17
    assert result.counts["n_shards"] == 9
    assert result.counts["n_checked_inner_chunks"] == 8 * 16
    # Without decoding, the stream is not looked at, and the report says so.
    shallow = verified(tmp_path / "a", decodes=False)
    assert told(shallow) == [("index", "c/2/0", None)]
    assert shallow.counts["read_nbytes"] == 0
    (skipped,) = [check for check in shallow.checks if not check.is_done]
    assert "use --decode" in skipped.how
    assert "zstd" in skipped.how


def test_checksums_are_verified_without_decoding(tmp_path, monkeypatch):
    made(tmp_path / "a", compressors=[ZstdCodec(), Crc32cCodec()])
    flip(tmp_path / "a/c/0/1", 3)
    source = gpushard.open_array(tmp_path / "a").source
    monkeypatch.setattr(type(source), "decode", pytest.fail)
    result = verify_array(source)
    assert told(result) == [("checksum", "c/0/1", (0, 4))]
    assert result.counts["n_checked_inner_chunks"] == 9 * 16
    done = {check.what: check.is_done for check in result.checks}
    assert done == {
        "shard indexes": True,
        "byte ranges": True,
        "sizes of inner chunks": True,
        "bytes of inner chunks": True,
        "decoding": False,
    }


def test_impossible_sizes_and_ranges_are_told_without_reading_payload(tmp_path):
    codecs = [BytesCodec()]
    no_crc = ShardingCodec(chunk_shape=(4, 4), codecs=codecs, index_codecs=codecs)
    made(
        tmp_path / "a", chunks=(16, 16), shards=None, serializer=no_crc,
        compressors=None,
    )  # fmt: skip
    file = tmp_path / "a/c/0/0"
    data = bytearray(file.read_bytes())
    entries = np.frombuffer(data, "<u8", offset=len(data) - 256).reshape(16, 2)
    entries[5, 1] = 63
    entries[9] = 2**63, 64
    entries[10, 0] = 2**64 - 1
    entries[11] = entries[12]  # legal: two in the same bytes
    entries[13, 0] = entries[14, 0] + 1  # legal, too
    file.write_bytes(data)
    result = verified(tmp_path / "a", decodes=False)
    assert told(result) == [
        ("size", "c/0/0", (1, 1)),
        ("bounds", "c/0/0", (2, 1)),
        ("bounds", "c/0/0", (2, 2)),
        ("overlap", "c/0/0", (3, 1)),
    ]
    assert result.n_damaged_inner_chunks == 3
    assert not result.findings[-1].is_damage
    assert result.counts["unused_nbytes"] > 0


def test_nested_indexes_are_verified_and_cost_what_lies_below_them(tmp_path):
    inner = ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec()])
    made(
        tmp_path / "a", chunks=(16, 16), shards=None, compressors=None,
        serializer=ShardingCodec(chunk_shape=(8, 8), codecs=[inner]),
    )  # fmt: skip
    assert verified(tmp_path / "a").status == "whole"
    flip(tmp_path / "a/c/0/1", 64 * 4 + 5)  # behind the first nested payload
    (found,) = verified(tmp_path / "a", decodes=False).findings
    assert (found.kind, found.inner_chunk, found.n_inner_chunks) == ("index", (0, 4), 4)


def nested_three_deep(place) -> zarr.Array:
    """One shard of 2 x 2 inner chunks, in two levels of nested ones; it has an edge."""
    innermost = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])
    middle = ShardingCodec(chunk_shape=(4, 4), codecs=[innermost])
    return made(
        place, shape=(14, 14), chunks=(16, 16), shards=None, compressors=None,
        serializer=ShardingCodec(chunk_shape=(8, 8), codecs=[middle]),
    )  # fmt: skip


def test_damage_of_an_outer_nested_shard_costs_innermost_inner_chunks(tmp_path):
    nested_three_deep(tmp_path / "a")
    file = tmp_path / "a/c/0/0"
    offset, nbytes = np.frombuffer(file.read_bytes()[-20:-4], "<u8").tolist()
    flip(file, offset + nbytes - 1)  # the index of elements 8 to 16, of which 6 exist
    (found,) = verified(tmp_path / "a", decodes=False).findings
    assert (found.kind, found.inner_chunk, found.n_inner_chunks) == ("index", (4, 4), 9)


def test_inner_chunks_of_missing_nested_shards_count_as_missing(tmp_path):
    z = nested_three_deep(tmp_path / "a")
    z[:8, :2] = z[8:, 8:] = z[4:, :4] = 0
    counts = verified(tmp_path / "a").counts
    # Two alone, three nested shards of 4 x 4 (one has an edge), one of 8 x 8 (two).
    assert counts["n_missing_inner_chunks"] == 2 + (4 + 4 + 2) + 9
    assert counts["n_inner_chunks"] == 7 * 7 - 21


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_codecs_around_whole_shards_are_undone_and_verified(tmp_path):
    around = ShardingCodec(chunk_shape=(4, 4), codecs=[BytesCodec()])
    made(
        tmp_path / "a", chunks=(16, 16), shards=None, serializer=around,
        compressors=Crc32cCodec(),
    )  # fmt: skip
    assert verified(tmp_path / "a").status == "whole"
    flip(tmp_path / "a/c/2/1", 7)
    result = verified(tmp_path / "a", decodes=False)
    assert told(result) == [("checksum", "c/2/1", None)]
    assert result.n_damaged_inner_chunks == 16


@pytest.mark.parametrize("decodes", [False, True])
def test_unsharded_chunks_are_verified_in_stores_that_tell_no_sizes(tmp_path, decodes):
    made(tmp_path / "a", chunks=(16, 16), shards=None, compressors=None)
    file = tmp_path / "a/c/0/2"
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "a/c/2/2").unlink()
    objects = {
        str(f.relative_to(tmp_path / "a")): f.read_bytes()
        for f in (tmp_path / "a").rglob("*")
        if f.is_file()
    }
    for place in (tmp_path / "a", held(objects)):
        result = verified(place, decodes=decodes)
        assert told(result) == [("size", "c/0/2", (0, 2))]
        assert result.counts["n_missing_shards"] == 1


def test_a_shard_cut_in_a_store_that_tells_no_size_is_told(tmp_path):
    made(tmp_path / "a", shards={"shape": (16, 16), "index_location": "start"})
    objects = {
        str(f.relative_to(tmp_path / "a")): f.read_bytes()
        for f in (tmp_path / "a").rglob("*")
        if f.is_file()
    }
    objects["c/1/1"] = objects["c/1/1"][:-30]
    store = held(objects)
    (check,) = [c for c in verified(store, decodes=False).checks if not c.is_done][:1]
    assert "tells no sizes" in check.how
    result = verified(store)
    assert {(f.kind, f.shard_key) for f in result.findings} == {("bounds", "c/1/1")}


def test_objects_that_cannot_be_read_are_told_and_the_others_verified(tmp_path):
    made(tmp_path / "a")
    for key in ("c/0/0", "c/2/2"):
        (tmp_path / "a" / key).unlink()
        (tmp_path / "a" / key).mkdir()
    result = verified(tmp_path / "a")
    assert told(result) == [
        ("unreadable", "c/0/0", None),
        ("unreadable", "c/2/2", None),
    ]
    assert result.status == "unverified"
    assert result.counts["n_checked_inner_chunks"] == 7 * 16
    names = "n_shards", "n_missing_shards", "n_unread_shards"
    assert [result.counts[name] for name in names] == [9, 0, 2]
    shards = "7 stored of 9 in the grid, 2 that could not be read"
    assert report_rows(result)[0] == ("shards", shards)


def test_a_store_that_fails_each_time_ends_the_verification(tmp_path):
    made(tmp_path / "a")
    for file in (tmp_path / "a" / "c").rglob("*/*"):
        file.unlink()
        file.mkdir()
    with pytest.raises(gpushard.StoreError):
        verified(tmp_path / "a")


@pytest.mark.parametrize("n_times", [1, 2])
def test_a_shard_replaced_meanwhile_is_verified_again(n_times, tmp_path, monkeypatch):
    made(tmp_path / "a")
    source = gpushard.open_array(tmp_path / "a").source
    read, n_replaced = source.store.read, [0]

    def replacing(requests):
        for request in requests:
            is_payload = request.version is not None and request.key == "c/1/1"
            if is_payload and n_replaced[0] < n_times:
                n_replaced[0] += 1
                flip(tmp_path / "a/c/1/1", 3)
                raise gpushard.errors.ObjectChangedError("replaced")
        return read(requests)

    monkeypatch.setattr(type(source.store), "read", lambda _, r: replacing(r))
    result = verify_array(source, decodes=True)
    kind = "decode" if n_times == 1 else "changed"
    assert [(f.kind, f.shard_key) for f in result.findings] == [(kind, "c/1/1")]
    assert result.status == ("damaged" if n_times == 1 else "unverified")
    assert (result.n_findings, result.counts["n_shards"]) == (1, 9)
    assert result.counts["n_inner_chunks"] == 9 * 16


@pytest.mark.parametrize("n_kept", [0, 2, 100])
def test_what_was_found_of_a_shard_replaced_meanwhile_counts_nowhere(
    n_kept, tmp_path, monkeypatch
):
    monkeypatch.setattr("gpushard.inspection.findings.MOST_FINDINGS", n_kept)
    made(tmp_path / "a", compressors=Crc32cCodec())
    whole = (tmp_path / "a/c/1/1").read_bytes()
    for k in range(16):
        flip(tmp_path / "a/c/1/1", 68 * k + 3)
    flip(tmp_path / "a/c/2/2", 3)
    options = gpushard.Options(memory_limit=300, threads=1)
    source = gpushard.open_array(tmp_path / "a", options=options).source
    read, n_asked = source.store.read, [0]

    def replacing(requests):
        for request in requests:
            if request.version is not None and request.key == "c/1/1":
                n_asked[0] += 1
                if n_asked[0] == 5:
                    (tmp_path / "a/c/1/1").write_bytes(whole)
                    raise gpushard.errors.ObjectChangedError("replaced")
        return read(requests)

    monkeypatch.setattr(type(source.store), "read", lambda _, r: replacing(r))
    result = verify_array(source)
    assert n_asked[0] > 5
    assert (result.n_findings, result.n_damage) == (1, 1)
    assert result.n_damaged_inner_chunks == 1
    kept = [("checksum", "c/2/2", (8, 8))]
    assert told(result) == kept[:n_kept]
    assert result.counts["n_shards"] == 9
    assert result.counts["n_checked_inner_chunks"] == 9 * 16


def test_memory_stays_bounded_however_large_a_shard_is(tmp_path):
    z = zarr.create_array(
        tmp_path / "a", shape=(64 * MIB,), chunks=(MIB // 2,), shards=(64 * MIB,),
        dtype="u1", compressors=None, fill_value=0,
    )  # fmt: skip
    z[...] = 1
    source = gpushard.open_array(
        tmp_path / "a", options=gpushard.Options(memory_limit=8 * MIB)
    ).source
    verify_array(source, decodes=True)  # what is loaded once is loaded
    tracemalloc.start()
    result = verify_array(source, decodes=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.counts["n_checked_inner_chunks"] == 128
    assert result.counts["read_nbytes"] == 64 * MIB
    assert peak < 12 * MIB


@pytest.mark.network
@pytest.mark.parametrize("shards", [(16, 16), None])
def test_arrays_behind_http_are_verified(tmp_path, shards):
    made(tmp_path / "a", shards=shards)
    with RangeServer(tmp_path) as server:
        assert verified(f"{server.url}/a").status == "whole"
    if shards:
        flip(tmp_path / "a/c/0/1", 3)
        with RangeServer(tmp_path) as server:
            result = verified(f"{server.url}/a")
        assert told(result) == [("decode", "c/0/1", (0, 4))]


@pytest.mark.network
def test_arrays_on_s3_are_verified(tmp_path, monkeypatch):
    obstore = pytest.importorskip("obstore", reason="the extra `remote` is missing")
    made(tmp_path / "a")
    flip(tmp_path / "a/c/0/1", 3)
    with s3_server() as endpoint:
        options = make_bucket(endpoint, monkeypatch)
        a = gpushard.stores.remote_url.open_url("s3://bucket/a", options)
        for file in (tmp_path / "a").rglob("*"):
            if file.is_file():
                key = str(file.relative_to(tmp_path / "a"))
                obstore.put(a.object_store, key, file.read_bytes())
        opened = gpushard.open_array("s3://bucket/a", storage_options=options)
        result = verify_array(opened.source, decodes=True)
    assert told(result) == [("decode", "c/0/1", (0, 4))]


def test_chunks_that_only_their_bytes_tell_the_size_of_are_held_within_the_limit(
    monkeypatch,
):
    objects = {}
    z = zarr.create_array(
        objects, shape=(160,), chunks=(16,), dtype="u1", compressors=None, fill_value=0
    )
    z[...] = 7
    seen: list[int] = []

    def told_of(source, some, *most):
        seen.append(len(some))
        return contents_of(source, some, *most)

    monkeypatch.setattr("gpushard.inspection.verify.contents_of", told_of)
    for limit, most in ((4 * 16 * 3, 3), (1, 1)):
        seen.clear()
        assert not verified(z.store, memory_limit=limit, threads=1).findings
        assert max(seen) == most
        assert sum(seen) == 10
