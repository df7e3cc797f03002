"""Little arrays of a group are converted side by side, and none is lost by it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.converting.conversion import Conversion
from gpushard.converting.mark import NAME, ConversionMark
from gpushard.options import MIB
from gpushard.stores.local.files import FileWriter

VALUES = np.arange(8 * 12).reshape(8, 12)


class EndedHereError(Exception):
    """What ends a conversion in mid-way, with all that it would have written."""


def make_group(place: Path, n_arrays: int = 3) -> dict[str, np.ndarray]:
    zarr.create_group(place)
    values = {f"a{k}": VALUES + k for k in range(n_arrays)}
    for name, some in values.items():
        zarr.create_array(place / name, data=some, chunks=(4, 6))
    return values


@pytest.mark.parametrize("n_written", range(16))
def test_little_arrays_that_are_not_whole_are_marked_wherever_it_ends(
    n_written, tmp_path, monkeypatch
):
    src, dst = tmp_path / "src", tmp_path / "dst"
    values = make_group(src)
    plain, left = FileWriter.locked, [n_written]

    def ends(self, key):
        left[0] -= 1
        if left[0] < 0:
            raise EndedHereError
        return plain(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "locked", ends)
        with pytest.raises(EndedHereError):
            gpushard.convert(src, dst)
    assert (dst / NAME).exists() is (n_written > 0)
    for name, want in values.items():
        is_there = (dst / name / "zarr.json").exists()
        is_marked = (dst / name / NAME).exists()
        is_whole = is_there and np.array_equal(
            gpushard.open_array(dst / name)[...], want
        )
        assert is_marked or is_whole or not is_there
    report = gpushard.convert(src, dst, verify=True).arrays
    assert list(report) == list(values)
    for name, want in values.items():
        np.testing.assert_array_equal(gpushard.open_array(dst / name)[...], want)
    assert not list(dst.rglob(".gpushard*"))


def test_little_arrays_are_noted_together_once_all_are_there(tmp_path, monkeypatch):
    src, dst = tmp_path / "src", tmp_path / "dst"
    values = make_group(src, 5)
    plain, noted = ConversionMark.write, []

    def write(self):
        if self.key == NAME:
            noted.append((self.done.tolist(), len(list(dst.glob("*/c/0/0")))))
        plain(self)

    monkeypatch.setattr(ConversionMark, "write", write)
    gpushard.convert(src, dst)
    assert noted == [([False] * 5, 0), ([True] * 5, 5)]
    assert len(list(dst.glob("*/c/0/0"))) == len(values)


@pytest.mark.parametrize(("limit", "n_most"), [(12 * MIB, 1), (64 * MIB, 3)])
def test_as_many_little_arrays_are_converted_side_by_side_as_memory_allows(
    limit, n_most, tmp_path, monkeypatch
):
    make_group(tmp_path / "src")
    together = threading.Barrier(n_most, timeout=10)
    plain, lock, now, seen = Conversion._convert, threading.Lock(), [0], []

    def convert(self, *args):
        with lock:
            now[0] += 1
            seen.append(now[0])
        together.wait()
        try:
            return plain(self, *args)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(Conversion, "_convert", convert)
    gpushard.convert(tmp_path / "src", tmp_path / "dst", memory_limit=limit)
    assert max(seen) == n_most
