"""`gpushard read`: what it writes, sums up, verifies and refuses."""

from __future__ import annotations

import io
import json
import os
import sys
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr

import gpushard
from cli_runs import run, run_json, sentence, write_sample, write_shards
from entry_points import add_to_zarr
from gpushard.cli import reading
from gpushard.cli.comparison import Reference
from range_server import RangeServer

NOTHING = {"min": None, "max": None, "mean": None, "n_nan": 0}


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    return write_sample(tmp_path_factory)


@pytest.fixture
def array(tmp_path) -> Path:
    return write_shards(tmp_path / "a.zarr")


def corrupt(path: Path) -> None:
    """Flip a bit in the middle of every stored object of an array."""
    for file in (path / "c").rglob("*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 0x10
            file.write_bytes(data)


def test_large_shards_are_read_piece_by_piece_too(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    values = np.random.default_rng(0).integers(0, 255, (30, 20), np.uint8)
    zarr.create_array(tmp_path, shape=(30, 20), shards=(30, 20), chunks=(3, 5),
                      dtype="u1")[:] = values  # fmt: skip
    sizes: list[int] = []
    real = gpushard.Array.read

    def read(self, key, *, out):
        sizes.append(out.size)
        return real(self, key, out=out)

    monkeypatch.setattr(gpushard.Array, "read", read)
    facts = run_json("read", tmp_path)
    assert sizes == [2 * 3 * 20] * 5
    assert facts["mean"] == values.mean()


def test_a_piece_is_let_go_of_before_the_next_one_is_read(array, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    pieces: list[weakref.ref[np.ndarray]] = []
    real = gpushard.Array.read

    def read(self, key, *, out):
        assert not any(piece() is not None for piece in pieces)
        pieces.append(weakref.ref(out))
        return real(self, key, out=out)

    monkeypatch.setattr(gpushard.Array, "read", read)
    run("read", array)
    assert len(pieces) > 2


def test_figures_are_told_of_what_goes_to_a_file_too(array, tmp_path):
    without = run_json("read", array)
    facts = run_json("read", array, "--out", tmp_path / "x.npy")
    names = ("min", "max", "mean", "n_nan")
    assert [facts[name] for name in names] == [without[name] for name in names]
    assert facts["max"] > facts["min"]
    text = run("read", array, "--out", tmp_path / "x.npy").stdout
    assert f"min {facts['min']}, max {facts['max']}" in text


@pytest.mark.parametrize(
    ("selection", "key"),
    [
        ("", ...),
        ("[...]", ...),
        ("[3]", 3),
        ("[-1, -1]", (-1, -1)),
        ("[25:3:-4, ::3]", (slice(25, 3, -4), slice(None, None, 3))),
        ("[..., ::-1]", (..., slice(None, None, -1))),
        ("[::-1, ::-1]", (slice(None, None, -1), slice(None, None, -1))),
        ("[5:5]", slice(5, 5)),
        ("[0:3:-1, 2]", (slice(0, 3, -1), 2)),
    ],
)
def test_read_writes_what_numpy_selects(array, tmp_path, selection, key):
    out = tmp_path / "x.npy"
    text = run("read", f"{array}{selection}", "--out", out, "--verify").stdout
    expected = zarr.open_array(array, mode="r")[...][key]
    assert np.load(out).dtype == expected.dtype
    np.testing.assert_array_equal(np.load(out), expected)
    plain = io.BytesIO()
    np.save(plain, np.ascontiguousarray(expected))
    assert out.stat().st_size == plain.tell()
    told = "element" if expected.size == 1 else f"{expected.size:,} elements"
    assert text.endswith(f"verified: zarr-python reads the same {told}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "x.npy"]


def test_read_of_a_0d_array_takes_ellipsis(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(), dtype="f8", fill_value=2.5)
    facts = run_json(
        "read", f"{tmp_path}/a[...]", "--out", tmp_path / "x.npy", "--verify"
    )
    assert (facts["shape"], facts["verified"]) == ([], True)
    assert np.load(tmp_path / "x.npy") == 2.5


def test_read_in_pieces_gives_the_same(array, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    whole = zarr.open_array(array, mode="r")[...]
    target = f"{array}[::-1, 3::2]"
    result = run(
        "read", target, "--out", tmp_path / "x.npy", "--verify", "--progress", "--json"
    )
    assert json.loads(result.stdout)["verified"] is True
    assert "bytes" in result.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), whole[::-1, 3::2])
    facts = run_json("read", target)
    assert facts["mean"] == pytest.approx(whole[::-1, 3::2].mean())


def test_progress_is_for_terminals_only(array, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    assert run("read", array).stderr == ""


def test_read_without_a_file_sums_up(array):
    whole = zarr.open_array(array, mode="r")[...]
    facts = run_json("read", array)
    assert (facts["min"], facts["max"]) == (whole.min(), whole.max())
    assert facts["mean"] == pytest.approx(whole.mean())
    assert (facts["out"], facts["verified"], facts["nbytes"]) == (None, None, 600)
    text = run("read", array).stdout
    assert text.startswith("uint8 (30, 20), 600 bytes\nmin ")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("f4", [1, np.nan, 3], {"min": 1.0, "max": 3.0, "mean": 2.0, "n_nan": 1}),
        ("f8", [np.nan], NOTHING | {"n_nan": 1}),
        ("i8", [2**62, 1], {"min": 1, "max": 2**62, "mean": 2.0**61, "n_nan": 0}),
        ("?", [True, False], {"min": False, "max": True, "mean": 0.5, "n_nan": 0}),
        ("f2", [60000, 60000], {"min": 60000, "max": 60000, "mean": 6e4, "n_nan": 0}),
        (ml_dtypes.bfloat16, [1, 2], {"min": 1, "max": 2, "mean": 1.5, "n_nan": 0}),
        ("c8", [1j], NOTHING),
        ("U3", ["abc"], NOTHING),
        ("M8[s]", [1], NOTHING),
        ("i4", [], NOTHING),
    ],
)
def test_summary_of_numbers_and_of_nothing_else(dtype, values, expected):
    summary = reading.Summary(np.dtype(dtype))
    for value in values:
        summary.add(np.array([[value]], dtype))
    assert summary.as_dict() == expected


def test_infinities_are_summed_up_without_a_warning():
    summary = reading.Summary(np.dtype("f4"))
    summary.add(np.array([np.inf, -np.inf], "f4"))
    assert summary.as_dict()["max"] == np.inf
    assert np.isnan(summary.as_dict()["mean"])


@pytest.mark.parametrize(
    "dtype", ["f2", "c16", "?", "M8[ns]", "<U4", "V3", [("a", "i2"), ("b", "f4")]]
)
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 spec")
def test_read_verifies_every_kind_of_element(dtype, tmp_path):
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 2, 12 * dtype.itemsize, np.uint8)
    values = raw.view(dtype)
    stored = zarr.create_array(tmp_path / "a", shape=(12,), dtype=dtype, chunks=(5,))
    stored[:] = values
    target = f"{tmp_path}/a[::-1]"
    run("read", target, "--out", tmp_path / "x.npy", "--verify")
    assert np.load(tmp_path / "x.npy").tobytes() == values[::-1].tobytes()


def bfloat16_array(path):
    """zarr-python has no bfloat16; its bytes are those of uint16."""
    values = np.arange(6, dtype=ml_dtypes.bfloat16)
    stored = zarr.create_array(path, shape=(6,), dtype="u2", compressors=None)
    stored[:] = values.view("u2")
    document = json.loads((path / "zarr.json").read_text())
    document |= {"data_type": "bfloat16", "fill_value": 0.0}
    (path / "zarr.json").write_text(json.dumps(document))
    return values


def test_elements_that_npy_cannot_name_are_written_as_bytes(tmp_path):
    values = bfloat16_array(tmp_path / "a")
    result = run("read", tmp_path / "a", "--out", tmp_path / "x.npy")
    assert "view('bfloat16')" in result.stderr
    np.testing.assert_array_equal(
        np.load(tmp_path / "x.npy").view(ml_dtypes.bfloat16), values
    )


def test_what_zarr_cannot_read_is_not_verified(tmp_path):
    bfloat16_array(tmp_path / "a")
    line = sentence(
        run("read", tmp_path / "a", "--out", tmp_path / "x.npy", "--verify", code=2)
    )
    assert "zarr-python cannot read this" in line
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 spec")
@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8` is currently not part")
def test_strings_are_read_and_compared_but_no_npy(tmp_path):
    stored = zarr.create_array(tmp_path / "a", shape=(3,), dtype=str)
    stored[:] = np.array(["a", "", "long enough"])
    facts = run_json("read", f"{tmp_path}/a[1:]", "--verify")
    assert facts["verified"] is True
    line = sentence(run("read", tmp_path / "a", "--out", tmp_path / "x.npy", code=2))
    assert "fixed size" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_mismatch_exits_with_1_and_leaves_no_file(array, tmp_path, monkeypatch):
    honest = Reference._read

    def read(self, piece):
        expected = honest(self, piece)
        expected[2:4, 1] ^= 1
        return expected

    monkeypatch.setattr(Reference, "_read", read)
    (tmp_path / "x.npy").write_text("old")
    target = f"{array}[29:3:-2, 4:9]"
    result = run("read", target, "--out", tmp_path / "x.npy", "--verify", code=1)
    assert "2 of 65 elements" in result.stderr
    assert "the first at (25, 5): expected " in result.stderr
    assert (tmp_path / "x.npy").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "x.npy"]
    facts = run_json("read", target, "--verify", code=1)
    assert facts["verified"] is False
    assert facts["mismatch"]["element"] == [25, 5]


def test_mismatches_of_all_pieces_are_counted(array, monkeypatch):
    monkeypatch.setattr(reading, "PIECE_NBYTES", 64)
    honest = Reference._read
    monkeypatch.setattr(Reference, "_read", lambda *args: honest(*args) ^ 1)
    facts = run_json("read", array, "--verify", code=1)
    assert facts["mismatch"]["n_elements"] == 600
    assert facts["mismatch"]["element"] == [0, 0]


def test_negative_zero_is_not_zero(tmp_path, monkeypatch):
    zarr.create_array(tmp_path, shape=(2,), dtype="f4", fill_value=0.0)
    monkeypatch.setattr(Reference, "_read", lambda *_: np.array([0.0, -0.0], "f4"))
    assert run_json("read", tmp_path, "--verify", code=1)["mismatch"]["element"] == [1]


def test_another_data_type_is_a_mismatch(tmp_path, monkeypatch):
    zarr.create_array(tmp_path, shape=(2,), dtype="i4", fill_value=0)
    monkeypatch.setattr(Reference, "_read", lambda *_: np.zeros(2, "u4"))
    mismatch = run_json("read", tmp_path, "--verify", code=1)["mismatch"]
    assert (mismatch["element"], mismatch["n_elements"]) == (None, 2)


def test_damage_exits_with_1_and_leaves_no_file(array, tmp_path):
    corrupt(array)
    line = sentence(run("read", array, "--out", tmp_path / "x.npy", code=1))
    assert "shard 'c/" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize(
    "selection",
    ["[30]", "[0, 0, 0]", "[a]", "[]", "[..., ...]", "[::0]", "[None]", "[[1, 2]]"],
)
def test_a_wrong_selection_exits_with_2(array, selection):
    sentence(run("read", f"{array}{selection}", code=2))


def test_reading_a_group_exits_with_2_and_names_its_arrays(sample):
    assert "open latitude or level" in sentence(run("read", sample, code=2))


@pytest.mark.parametrize("out", [".", "absent/x.npy", "file/x.npy", "x" * 256])
def test_a_file_that_cannot_be_written_exits_with_2(array, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert "cannot write" in sentence(run("read", array, "--out", out, code=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "file"]


def test_nothing_but_files_is_replaced(array, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    line = sentence(run("read", array, "--out", tmp_path / "pipe", code=2))
    assert "no regular file" in line
    (tmp_path / "link.npy").symlink_to("there.npy")
    (tmp_path / "link.npy.part").write_text("somebody's own")
    run("read", array, "--out", tmp_path / "link.npy")
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "there.npy").shape == (30, 20)
    names = ["a.zarr", "link.npy", "link.npy.part", "pipe", "there.npy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_what_is_compared_is_read_by_zarrs_own_pipeline(array):
    add_to_zarr()
    with zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}):
        reference = Reference(gpushard.open_array(array).source.store, "")
    pipeline = reference._array._async_array.codec_pipeline
    assert type(pipeline).__module__ == "zarr.core.codec_pipeline"


def test_arrays_of_zarr_v2_are_verified(tmp_path):
    z = zarr.create_array(
        tmp_path, shape=(6,), chunks=(4,), dtype="i4", zarr_format=2, compressors=None
    )
    z[:] = np.arange(6)
    assert run_json("read", tmp_path, "--verify")["verified"] is True


@pytest.mark.filterwarnings("ignore:The (data type|codec) .* Zarr")
@pytest.mark.parametrize(("dtype", "text"), [("S3", b"a"), ("U4", "b"), ("str", "c")])
def test_a_string_without_axes_is_verified(dtype, text, tmp_path):
    zarr.create_array(tmp_path, shape=(), chunks=(), dtype=dtype, fill_value=text)
    assert run_json("read", tmp_path, "--verify")["verified"] is True


def test_a_full_disk_exits_with_2(array, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    line = sentence(run("read", array, "--out", tmp_path / "x.npy", code=2))
    nbytes = gpushard.open_array(array, device="cpu").nbytes
    assert f"x.npy' ({nbytes:,} bytes): No space left on device" in line
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_too_little_memory_exits_with_2(array, monkeypatch):
    def fail(*_args, **_options):
        raise MemoryError("Unable to allocate 1 EiB")

    monkeypatch.setattr(reading, "read_target", fail)
    assert "1 EiB" in sentence(run("read", array, code=2))


def test_debug_shows_the_traceback(array):
    assert "Traceback" not in run("read", f"{array}[99]", code=2).stderr
    shown = run("read", f"{array}[99]", "--debug", code=2).stderr
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("gpushard: index 99 is out of bounds")


@pytest.mark.network
def test_read_over_http_is_verified_through_the_same_connection(sample, tmp_path):
    with RangeServer(sample) as server:
        facts = run_json(
            "read", f"{server.url}/u[1, 0, ::60, 7]", "--out", tmp_path / "x.npy",
            "--verify",
        )  # fmt: skip
        assert facts["verified"] is True
        info = run_json("info", f"{server.url}/u")
        assert (info["n_shards"], info["n_stored"]) == (2, None)
    expected = zarr.open_array(sample, path="u")[1, 0, ::60, 7]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)


@pytest.mark.network
def test_what_comparing_needs_is_told(sample, monkeypatch):
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with RangeServer(sample) as server:
        line = sentence(run("read", f"{server.url}/u[0, 0]", "--verify", code=2))
    assert "nothing was compared: others read web servers through obstore" in line
    assert line.endswith("'gpushard[remote]', or read it without --verify.")
    assert "UnsupportedError" not in line


def test_read_from_a_zip_file_is_verified(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, data=np.arange(10), chunks=(5,))
    assert run_json("read", f"{tmp_path}/a.zip[::-3]", "--verify")["max"] == 9
