"""What a conversion takes for its source, and that it never deletes that."""

from __future__ import annotations

import numpy as np
import obstore.store
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

import gpushard
from rolling_arrays import rolling, steps

VALUES = np.arange(1, 24, dtype="f4")


def stored(place):
    a = zarr.create_array(place, shape=VALUES.shape, chunks=(5,), dtype="f4")
    a[...] = VALUES
    return place


def assert_is_left(place):
    got = gpushard.open_array(place, device="cpu")[...]
    np.testing.assert_array_equal(got, VALUES)
    assert {path.name for path in place.iterdir()} == {"zarr.json", "c"}


def test_a_place_that_overlaps_the_source_is_refused(tmp_path):
    zarr.create_group(tmp_path / "src")
    src = stored(tmp_path / "src" / "a")
    for one, other in ((src, src), (tmp_path / "src", src), (src, tmp_path / "src")):
        with pytest.raises(gpushard.GpushardError, match="overlap"):
            gpushard.convert(one, other, overwrite=True)
    with pytest.raises(gpushard.GpushardError, match="overlap"):
        gpushard.convert(tmp_path / "src", tmp_path / "src" / "below" / "it")
    assert not (tmp_path / "src" / "below").exists()
    assert_is_left(src)


def test_a_group_that_overwrites_deletes_what_was_there_once(tmp_path):
    zarr.create_group(tmp_path / "src")
    for name in ("a", "b"):
        stored(tmp_path / "src" / name)
    dst = stored(tmp_path / "dst")
    gpushard.convert(tmp_path / "src", dst, overwrite=True)
    for name in ("a", "b"):
        assert_is_left(dst / name)
    assert {path.name for path in dst.iterdir()} == {"zarr.json", "a", "b"}


NAMES = {
    "path": lambda place: place,
    "wrapped": lambda place: WrapperStore(LocalStore(place)),
    "obstore": lambda place: ObjectStore(obstore.store.LocalStore(place)),
    "fsspec": lambda place: FsspecStore.from_url(f"file://{place}"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_the_source_is_not_overwritten_under_another_name(name, other, tmp_path):
    zarr.create_group(tmp_path / "group")
    src = stored(tmp_path / "group" / "a")
    # The array is the destination, or lies in it.
    for named, path, place in ((src, "", src), (src.parent, "a", src.parent)):
        with pytest.raises(gpushard.OptionError, match="overlap"):
            gpushard.convert(
                NAMES[name](named), NAMES[other](place), path, overwrite=True
            )
        assert_is_left(src)


def test_one_array_of_a_group_is_not_overwritten_under_another_name(tmp_path):
    zarr.create_group(tmp_path)
    src = stored(tmp_path / "a")
    group = NAMES["obstore"](tmp_path)
    with pytest.raises(gpushard.OptionError, match="overlap"):
        gpushard.convert(group, src, overwrite=True)
    assert_is_left(src)


@pytest.mark.parametrize("shapes", [{"chunks": 2**70}, {"shards": 3 * 10**9}])
def test_shapes_that_no_array_can_have_are_told_with_the_destination(shapes, tmp_path):
    src = stored(tmp_path / "src")
    with pytest.raises(gpushard.GpushardError, match=r"array 'file://.*/dst/x/y'"):
        gpushard.convert(src, tmp_path / "dst", "", "x/y", **shapes)


def test_a_view_is_converted_and_not_the_window_of_its_array(tmp_path):
    a = rolling(tmp_path / "a", 0, 8)
    last, before = a.view(-2), a.view()
    a.roll(steps(8, 10), delete=False)
    for name, view, want in (("b", last, steps(6, 8)), ("c", before, steps(0, 8))):
        gpushard.convert(view, tmp_path / name, verify=True)
        got = gpushard.open_array(tmp_path / name, device="cpu")[...]
        np.testing.assert_array_equal(got, want)


def test_a_group_is_converted_with_the_arrays_that_it_was_opened_with(tmp_path):
    src = tmp_path / "src"
    zarr.create_group(src)
    stored(src / "a")
    with pytest.warns(match="Consolidated"):
        zarr.consolidate_metadata(src)
    stored(src / "late")
    group = gpushard.open_group(src, use_consolidated=False)
    assert list(gpushard.convert(group, tmp_path / "dst").arrays) == ["a", "late"]
