"""The compiled loops tell the disk ahead what they will wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpushard
from fused_cases import (
    CHAINS,
    FUSED,
    VALUES,
    assert_all_fused,
    need_fast_packages,
    stored,
)
from gpushard.fused import files, shares
from gpushard.fused.short import sharded as short_sharded
from zarr_oracle import assert_same_bits

need_fast_packages()

pytestmark = [
    pytest.mark.usefixtures("way"),
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
]
SHORT = FUSED.but(small_read_chunks=1)


class Disk:
    """A disk from which nothing was read yet; what was asked for is there soon."""

    def __init__(self) -> None:
        self.is_there: set[tuple[int, int]] = set()
        self.told: list[tuple[int, int, int]] = []

    def is_in_memory(self, fd: int, offset: int) -> bool:
        return self.answer(fd, offset)

    def answer(self, *place: int) -> bool:
        if place in self.is_there:
            return True
        self.is_there.add(place)
        return False

    def read_ahead(self, fd: int, offset: int, nbytes: int) -> None:
        self.told.append((fd, offset, nbytes))


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    for module in (files, short_sharded):
        monkeypatch.setattr(module, "is_in_memory", disk.is_in_memory)
    monkeypatch.setattr(files, "read_ahead", disk.read_ahead)
    return disk


def opened(tmp_path: Path, chain: str, options: Any) -> gpushard.Array:
    place = stored(CHAINS[chain]).placed("local", tmp_path)
    return gpushard.open_array(place, options=options)


@pytest.mark.parametrize("chain", ["raw", "zstd"])
def test_disks_are_told_of_each_file_of_a_large_read(disk, seen, tmp_path, chain):
    a = opened(tmp_path, chain, FUSED)
    assert_same_bits(a[...], VALUES)
    assert_all_fused(seen)
    assert len(disk.told) == 4


@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc lz4 shuffle 0"])
def test_to_ask_whether_a_short_read_waits_does_not_hide_that_it_does(
    disk, tmp_path, chain
):
    a = opened(tmp_path, chain, SHORT)
    assert_same_bits(a[::40, 5:70], VALUES[::40, 5:70])
    assert len({fd for fd, _, _ in disk.told}) == 4


def test_a_short_read_of_what_is_in_memory_tells_the_disk_nothing(disk, tmp_path):
    a = opened(tmp_path, "raw", SHORT)
    a[::40, 5:70]
    disk.told.clear()
    assert_same_bits(a[::40, 5:70], VALUES[::40, 5:70])
    assert not disk.told


def test_shares_behind_one_that_waits_are_told_without_being_asked_for(
    disk, monkeypatch, seen, tmp_path
):
    monkeypatch.setattr(shares, "_SMALLEST_NBYTES", 1)
    a = opened(tmp_path, "zstd", FUSED)
    told = []
    for answers in (iter(lambda: False, None), iter([False])):
        monkeypatch.setattr(disk, "answer", lambda *_, a=answers: next(a, True))
        assert_same_bits(a[...], VALUES)
        told.append([(offset, nbytes) for _, offset, nbytes in disk.told])
        disk.told.clear()
    assert_all_fused(seen)
    assert len(told[0]) >= 4
    assert told[1] == told[0]


def test_of_shares_that_are_missing_the_disk_is_told_nothing(
    disk, monkeypatch, seen, tmp_path
):
    monkeypatch.setattr(shares, "_SMALLEST_NBYTES", 1)
    monkeypatch.setattr(disk, "answer", lambda *_: False)
    objects = stored(CHAINS["zstd"])
    del objects.objects["c/1/0"], objects.objects["c/1/1"]
    a = gpushard.open_array(objects.placed("local", tmp_path), options=FUSED)
    want = VALUES.copy()
    want[64:] = 0
    assert_same_bits(a[...], want)
    assert_all_fused(seen)
    assert len({fd for fd, _, _ in disk.told}) == 2
