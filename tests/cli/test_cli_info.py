"""`gpushard info`: arrays, groups, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    ShardingCodec,
    ZstdCodec,
)

import gpushard
from cli_runs import run, run_json, sentence, write_sample, write_shards
from cuda_host.device import EmulatedDevice
from damaged_arrays import emulated
from gpushard.cli import description
from gpushard.cli.output import printable
from gpushard.devices import find
from range_server import RangeServer
from zarr_oracle import quiet_zarr


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    return write_sample(tmp_path_factory)


@pytest.fixture
def array(tmp_path) -> Path:
    return write_shards(tmp_path / "a.zarr")


def test_info_tells_an_arrays_facts(sample):
    facts = run_json("info", sample / "u")
    assert facts["node_type"] == "array"
    assert facts["shape"] == [2, 3, 241, 480]
    assert facts["dimension_names"] == ["month", "level", "latitude", "longitude"]
    assert facts["dtype"] == "int16"
    assert (facts["chunks"], facts["shards"]) == ([1, 1, 61, 120], [1, 3, 244, 480])
    assert (facts["n_shards"], facts["n_stored"]) == (2, 2)
    assert facts["nbytes"] == 2 * 3 * 241 * 480 * 2
    assert facts["stored_nbytes"] == 426277 + 412879
    assert facts["fill_value"] == 0
    assert facts["sharding"] == [
        {
            "chunk_shape": [1, 1, 61, 120],
            "index_location": "end",
            "index_codecs": ["bytes", "crc32c"],
        }
    ]
    assert {codec["codec"] for codec in facts["codecs"]} == {"bytes", "blosc"}
    assert all(codec["library"] for codec in facts["codecs"])
    assert facts["attributes"]["units"] == "m s**-1"


def test_info_tells_people_the_same(sample):
    text = run("info", sample / "u").stdout
    rows = {line[:14].strip(): line[14:].strip() for line in text.splitlines()}
    assert rows["shape"] == "(2, 3, 241, 480)"
    assert rows["shards"] == "(1, 3, 244, 480), 2 in the grid, 2 stored"
    assert rows["size"] == "1,388,160 bytes, 839,156 stored, 1.65 times smaller"
    assert "index at the end (bytes, crc32c)" in rows["codecs"]
    assert "blosc: on the host, " in text


def test_info_counts_missing_shards(array):
    facts = run_json("info", array)
    assert (facts["n_shards"], facts["n_stored"]) == (6, 4)


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("shape", [(), (5, 3)])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_info_counts_objects_and_no_files_beside_them(
    zarr_format, shape, separator, tmp_path
):
    name = "v2" if zarr_format == 2 else "default"
    a = zarr.create_array(
        tmp_path,
        shape=shape,
        chunks=(2,) * len(shape),
        dtype="i4",
        compressors=None,
        chunk_key_encoding={"name": name, "separator": separator},
        zarr_format=zarr_format,
    )
    a[...] = 1
    objects = [p for p in tmp_path.rglob("*") if p.is_file() and p.name[0] not in ".z"]
    expected = [len(objects), sum(p.stat().st_size for p in objects)]
    beside = [objects[0].with_name(f".{objects[0].name}.part"), tmp_path / "9/9/9"]
    beside += [tmp_path / "c.9.9", tmp_path / "9.9", tmp_path / "README"]
    beside += [tmp_path / "00.1", tmp_path / ("c/00/1" if shape else "c.00.1")]
    for file in beside:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    facts = run_json("info", tmp_path)
    assert [facts["n_stored"], facts["stored_nbytes"]] == expected
    assert facts["n_stored"] == facts["n_shards"]


def test_info_of_an_unsharded_array_has_chunks_only(sample):
    facts = run_json("info", sample / "level")
    assert (facts["chunks"], facts["shards"], facts["sharding"]) == ([3], None, [])
    assert "inner chunks" not in run("info", sample / "level").stdout


def test_info_lists_a_groups_children(sample):
    facts = run_json("info", sample)
    assert facts["node_type"] == "group"
    assert list(facts["arrays"]) == sorted(["u", "v", "z", *COORDINATES])
    assert facts["arrays"]["z"]["shards"] == [1, 3, 244, 480]
    lines = run("info", sample).stdout.splitlines()
    assert lines[0].split() == ["name", "shape", "dtype", "inner", "chunks", "shards"]
    assert lines[5].startswith("u          (2, 3, 241, 480)  int16    (1, 1, 61, 120)")


COORDINATES = ["latitude", "level", "longitude", "month"]


def test_info_lists_groups_and_what_cannot_be_read(tmp_path):
    group = zarr.create_group(tmp_path)
    group.create_group("below")
    group.create_array("odd", shape=(2,), dtype="i4")
    document = json.loads((tmp_path / "odd" / "zarr.json").read_text())
    document["codecs"].append({"name": "no-such-codec"})
    (tmp_path / "odd" / "zarr.json").write_text(json.dumps(document))
    facts = run_json("info", tmp_path)
    assert facts["groups"] == ["below"]
    assert "no-such-codec" in facts["arrays"]["odd"]["error"]
    assert "below/" in run("info", tmp_path).stdout


def test_a_child_that_cannot_be_read_leaves_the_table_of_the_others_narrow(tmp_path):
    group = zarr.create_group(tmp_path)
    group.create_array("good", shape=(2,), chunks=(2,), dtype="i4")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "zarr.json").write_text("no JSON")
    lines = run("info", tmp_path).stdout.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["name", "shape", "dtype", "inner", "chunks", "shards"],
        ["good", "(2,)", "int32", "(2,)", "-"],
    ]
    assert max(map(len, lines[:2])) < 60
    assert lines[2].startswith("bad  ")
    assert "zarr.json" in lines[2]


def test_info_of_an_empty_group_says_so(tmp_path):
    zarr.create_group(tmp_path)
    assert run("info", tmp_path).stdout.splitlines() == ["the group is empty"]


def test_an_empty_line_is_only_before_the_attributes_of_a_group(tmp_path):
    group = zarr.create_group(tmp_path, attributes={"units": "K"})
    group.create_array("a", shape=(2,), dtype="i4")
    for is_broken in (False, True):
        if is_broken:
            (tmp_path / "bad").mkdir()
            (tmp_path / "bad" / "zarr.json").write_text("no JSON")
        *_, empty, attributes = run("info", tmp_path).stdout.splitlines()
        assert (empty, attributes.split()) == ("", ["attributes", "units:", "K"])


def test_info_is_strict_json_whatever_the_numbers(tmp_path):
    attributes = {"nan": float("nan"), "limits": [-float("inf"), {"x": float("inf")}]}
    zarr.create_array(tmp_path, shape=(2,), dtype="f4", fill_value=np.nan)
    # Written by hand: zarr 3.1.0 refuses such attributes, later ones write them so.
    document = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(
        json.dumps(document | {"attributes": attributes})
    )
    facts = run_json("info", tmp_path)
    assert facts["fill_value"] == "NaN"
    assert facts["attributes"] == {
        "nan": "NaN",
        "limits": ["-Infinity", {"x": "Infinity"}],
    }


def test_info_lets_no_control_character_through(tmp_path):
    zarr.create_array(
        tmp_path, shape=(1,), dtype="i1", attributes={"\x1b[2J": "a\x9bb\u202ec"}
    )
    text = run("info", tmp_path).stdout
    assert "\\x1b[2J: a\\x9bb\\u202ec" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_a_long_attribute_is_cut_in_text_and_whole_in_json(tmp_path):
    numbers = list(range(2000))
    zarr.create_array(tmp_path, shape=(1,), dtype="i1", attributes={"many": numbers})
    text = run("info", tmp_path).stdout
    assert "many: [0, 1, 2, 3," in text
    assert "(10,890 characters, all of them with --json)" in text
    assert len(text) < 1500
    assert run_json("info", tmp_path)["attributes"] == {"many": numbers}


def test_printable_keeps_what_people_write():
    assert printable("Größe 温度 [a] 'b'") == "Größe 温度 [a] 'b'"


# where codecs are decoded


def chain(path, **codecs):
    zarr.create_array(
        path, shape=(64,), dtype="i4", chunks=(16,), shards=(32,), **codecs
    )[...] = 1
    return path


def test_without_a_gpu_the_host_decodes_and_the_reason_is_told(sample, monkeypatch):
    monkeypatch.setattr(
        find,
        "_usable_gpu",
        lambda process: find.FoundDevice(None, "no GPU is used: a test"),
    )
    facts = run_json("info", sample / "u")
    assert (facts["device"], facts["device_why"]) == ("cpu", "no GPU is used: a test")
    assert {codec["where"] for codec in facts["codecs"]} == {"host"}
    text = run("info", sample / "u").stdout
    assert "device        cpu: no GPU is used: a test" in text


@pytest.fixture
def device(monkeypatch):
    found = EmulatedDevice(*emulated(), seed=3)
    monkeypatch.setattr(find, "_usable_gpu", lambda process: find.FoundDevice(found))
    return found


def test_on_a_device_each_codec_is_told_where_a_read_decodes_it(tmp_path, device):
    path = chain(tmp_path / "a", compressors=[ZstdCodec(), Crc32cCodec()])
    facts = run_json("info", path)
    assert (facts["device"], facts["device_why"]) == ("emulated:0", "")
    told = [(c["codec"], c["where"], c["library"]) for c in facts["codecs"]]
    assert [where for _, where, _ in told] == ["device", "device", "scatter"]
    a = gpushard.open_array(path, options=gpushard.Options(placement="device"))
    read = [(c.codec, c.where, c.library) for c in a.explain().codecs]
    assert told == read
    text = run("info", path).stdout
    assert "device        emulated:0\n" in text
    assert f"zstd: on emulated:0, {device.decoder.label}\n" in text
    assert "bytes: on emulated:0, as the elements are put in place, gpushard\n" in text


def test_what_a_device_does_not_decode_is_told_with_its_reason(tmp_path, device):
    blosclz = chain(tmp_path / "a", compressors=BloscCodec(cname="blosclz"))
    lz4 = chain(tmp_path / "b", compressors=BloscCodec(cname="lz4hc"))
    assert run_json("info", lz4)["codecs"][0]["where"] == "device"
    told = run_json("info", blosclz)["codecs"][0]
    assert (told["where"], told["why"]) == ("host", "no device decodes blosclz")
    assert "(no device decodes blosclz)" in run("info", blosclz).stdout


# what is not counted


@pytest.mark.parametrize(("most", "n_stored"), [(8, 4), (7, None)])
def test_files_are_counted_up_to_so_many(most, n_stored, tmp_path, monkeypatch):
    src = write_shards(tmp_path / "a")  # four, their directories, and the document
    monkeypatch.setattr(description, "_MAX_FILES", most)
    assert run_json("info", src)["n_stored"] == n_stored


def test_a_damaged_index_is_told(array):
    facts = run_json("info", array)
    assert (facts["n_damaged_indexes"], facts["why_not_counted"]) == (0, None)
    assert "DAMAGED" not in run("info", array).stdout
    shard = array / "c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert run_json("info", array)["n_damaged_indexes"] == 1
    text = run("info", array).stdout
    assert "DAMAGED       1 shard index is not readable: see gpushard verify" in text


def test_why_nothing_was_counted_is_told(array, sample, monkeypatch):
    monkeypatch.setattr(description, "_MAX_INDEXES", 5)
    assert run_json("info", array)["why_not_counted"] == "there are more than 5 shards"
    assert run_json("info", sample / "level")["n_damaged_indexes"] is None
    monkeypatch.setattr(description, "_MAX_INDEXES", 6)
    (array / "c/0/0").unlink()
    (array / "c/0/0").mkdir()
    assert "expected a regular file" in run_json("info", array)["why_not_counted"]


def test_indexes_inside_a_codec_are_not_counted(tmp_path):
    sharding = ShardingCodec(chunk_shape=(2,))
    made = {"chunks": (4,), "serializer": sharding, "compressors": ZstdCodec()}
    with quiet_zarr():  # which advises against such a chain
        zarr.create_array(tmp_path / "a", shape=(8,), dtype="u1", **made)[...] = 1
    why = "codecs around whole shards hide their indexes"
    assert run_json("info", tmp_path / "a")["why_not_counted"] == why


def test_nothing_but_metadata_is_asked_of_a_server(array):
    with RangeServer(array) as server:
        facts = run_json("info", server.url)
        text = run("info", server.url).stdout
    assert facts["why_not_counted"] == "the store is not local"
    assert "(5, 5), not counted: the store is not local" in text
    assert "6 in the grid, stored ones not counted" in text
    assert not any(request.key.startswith("c/") for request in server.requests)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_info_tells_what_is_known_of_a_group_that_cannot_be_listed(
    zarr_format, tmp_path
):
    group = zarr.create_group(
        tmp_path, attributes={"title": "sea"}, zarr_format=zarr_format
    )
    group.create_array("salt", shape=(2,), dtype="i4")
    with RangeServer(tmp_path) as server:
        facts = run_json("info", server.url)
        text = run("info", server.url).stdout
        assert run_json("info", f"{server.url}/salt")["shape"] == [2]
        assert "consolidate" in sentence(run("verify", server.url, code=2))
    assert facts["why_not_listed"].startswith("this store cannot list")
    assert (facts["arrays"], facts["attributes"]) == ({}, {"title": "sea"})
    assert "title: sea" in text
    assert f"{server.url}/NAME" in text


def test_info_of_nothing_exits_with_2(tmp_path):
    assert "zarr.json" in sentence(run("info", tmp_path, code=2))
    sentence(run("info", tmp_path / "absent", code=2))


def test_a_misspelt_array_is_told_with_those_beside_it(sample):
    for command in ("info", "read", "map", "verify"):
        told = sentence(run(command, sample / "longitud", code=2))
        assert f"the group '{sample}' has longitude, latitude" in told


def test_info_counts_inner_chunks_of_nested_shards_by_their_own_shape(tmp_path):
    inner = ShardingCodec(chunk_shape=(1, 2), codecs=[BytesCodec()])
    z = zarr.create_array(
        tmp_path, shape=(8, 10), chunks=(8, 8), dtype="i4", compressors=None,
        serializer=ShardingCodec(chunk_shape=(4, 4), codecs=[inner]),
    )  # fmt: skip
    z[:4, :4] = 5
    text = run("info", tmp_path).stdout
    assert "inner chunks  (1, 2), 8 stored, 24 empty in stored shards" in text


def test_info_counts_shards_that_links_lead_to_as_a_read_finds_them(array):
    whole = run_json("info", array)
    (array / "c").rename(array / "elsewhere")
    (array / "c").symlink_to("elsewhere")
    (array / "c/2").mkdir(exist_ok=True)
    (array / "c/2/0").mkdir()  # no shard, which reads say
    facts = run_json("info", array)
    names = "n_stored", "stored_nbytes"
    assert [facts[name] for name in names] == [whole[name] for name in names]
    (array / "elsewhere").rename(array.with_name("outside"))
    (array / "c").unlink()
    (array / "c").symlink_to("../outside")
    assert run_json("info", array)["n_stored"] is None  # they are not read either


def test_info_of_a_broken_document_exits_with_2(tmp_path):
    (tmp_path / "zarr.json").write_text("{")
    sentence(run("info", tmp_path, code=2))


def test_info_counts_the_empty_inner_chunks_of_stored_shards(tmp_path):
    path = write_shards(tmp_path / "a")
    facts = run_json("info", path)
    assert (facts["n_stored_inner_chunks"], facts["n_empty_inner_chunks"]) == (16, 0)
    z = zarr.create_array(
        tmp_path / "b", shape=(7, 6), shards=(4, 4), chunks=(2, 2), dtype="i1"
    )
    z[5, 1] = 1
    facts = run_json("info", tmp_path / "b")
    # Of the shard at the edge, one row of inner chunks ends within the array.
    assert (facts["n_stored_inner_chunks"], facts["n_empty_inner_chunks"]) == (1, 3)
    assert ", 1 stored, 3 empty in stored shards" in run("info", tmp_path / "b").stdout
    z[0, 5] = 1  # half of this shard lies beyond the array
    assert run_json("info", tmp_path / "b")["n_empty_inner_chunks"] == 4
    (tmp_path / "b/c/0/1").write_bytes(b"short")
    facts = run_json("info", tmp_path / "b")
    assert (facts["n_stored_inner_chunks"], facts["n_empty_inner_chunks"]) == (1, 3)
