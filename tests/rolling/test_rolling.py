"""Rolling arrays: made, appended to, prepended to, dropped from, rolled and read."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import gpushard
from gpushard.rolling import RollingArray
from gpushard.stores.local.files import FileWriter
from rolling_arrays import (
    FILL,
    PLAIN,
    WIDTH,
    document,
    filled,
    rolling,
    shards_of,
    steps,
)


def test_an_array_is_made_empty_and_grows(tmp_path):
    a = RollingArray.create(tmp_path / "a", **PLAIN)
    assert a.shape == (0, WIDTH)
    assert a.append(steps(0, 4)) is a
    assert a.append(steps(4, 6)).shape == (6, WIDTH)
    assert np.array_equal(a[...], steps(0, 6))
    assert np.array_equal(RollingArray.open(tmp_path / "a")[...], steps(0, 6))


def test_a_window_moves_and_what_is_stored_stays_where_it_is(tmp_path):
    a = rolling(tmp_path / "a", 0, 6)
    kept = {key: os.stat(tmp_path / "a" / key).st_ino for key in ("c/1/0", "c/2/0")}
    a.roll(steps(6, 8)).drop(0, axis=-2)
    assert a.domain == (range(2, 8), range(WIDTH))
    assert np.array_equal(a[...], steps(2, 8))
    assert shards_of(tmp_path / "a") == {"c/1/0", "c/2/0", "c/3/0"}
    assert {k: os.stat(tmp_path / "a" / k).st_ino for k in kept} == kept


def test_the_origin_is_an_attribute_and_nothing_else_of_the_document_changes(tmp_path):
    a = rolling(tmp_path / "a", 0, 4, attributes={"units": "K"})
    before = document(tmp_path / "a")
    assert before["attributes"]["origin"] == [0, 0]
    a.roll(steps(4, 6))
    after = document(tmp_path / "a")
    assert after["attributes"] == before["attributes"] | {"origin": [1, 0]}
    assert after | {"attributes": 0} == before | {"attributes": 0}
    assert a.attrs["units"] == "K"
    assert a.attrs["origin"] == [1, 0]


def test_shards_before_the_first_have_negative_keys(tmp_path):
    a = rolling(tmp_path / "a", 0, 2)
    a.prepend(steps(-4, 0))
    assert shards_of(tmp_path / "a") == {"c/-2/0", "c/-1/0", "c/0/0"}
    assert a.origin == (-2, 0)
    assert np.array_equal(a[...], steps(-4, 2))
    assert np.array_equal(gpushard.open_array(tmp_path / "a")[...], steps(-4, 2))


def test_keys_with_dots_and_of_v2_may_be_negative_too(tmp_path):
    for kind, separator in (("default", "."), ("v2", "."), ("v2", "/")):
        encoding = {"name": kind, "separator": separator}
        place = tmp_path / (kind + str(ord(separator)))
        a = rolling(place, -2, 4, chunk_key_encoding=encoding)
        a.drop(2, delete=False)
        assert np.array_equal(a[...], steps(0, 4))
        assert a.sweep() == 1
        assert np.array_equal(a[...], steps(0, 4))


def test_an_index_counts_from_the_window_as_numpy_does(tmp_path):
    a, want = rolling(tmp_path / "a", 6, 12), steps(6, 12)
    assert np.array_equal(a[-2:], want[-2:])
    assert a[0, 1] == want[0, 1]
    assert isinstance(a[0, 1], np.int32)
    assert np.array_equal(a[::-2, 1:4], want[::-2, 1:4])
    assert np.array_equal(a.oindex[[4, 0], 1:3], want[[4, 0], 1:3])
    assert np.array_equal(a.vindex[[4, 0], [1, 2]], want[[4, 0], [1, 2]])
    assert np.array_equal(a.read(slice(1, 3), dtype="f8"), want[1:3])
    assert np.array_equal(np.asarray(a), want)
    assert np.array_equal(np.stack(list(a)), want)
    with pytest.raises(IndexError):
        a[6]


def test_logical_coordinates_stay_with_what_they_name(tmp_path):
    a = rolling(tmp_path / "a", -4, 4)
    assert a.domain == (range(-4, 4), range(WIDTH))
    assert np.array_equal(a.at[-3:], steps(-3, 4))
    assert np.array_equal(a.at[-3], steps(-3, -2)[0])
    assert np.array_equal(a.at[..., 2], steps(-4, 4)[:, 2])
    assert np.array_equal(a.at[-4:4:3, 1:2], steps(-4, 4)[::3, 1:2])
    assert np.array_equal(a.at[2:-2], steps(0, 0))
    a.roll(steps(4, 8))
    assert np.array_equal(a.at[1:3], steps(1, 3))
    assert a.at[5, 3] == 53


OUTSIDE = (-5, 4, slice(-5, None), slice(0, 5), slice(None, None, -1), 0.5)


@pytest.mark.parametrize("key", [*OUTSIDE, [1, 2], (0, 0, 0), (..., ...)])
def test_what_is_not_in_the_domain_is_refused(key, tmp_path):
    a = rolling(tmp_path / "a", -4, 4)
    with pytest.raises(gpushard.SelectionError):
        a.at[key]


def test_values_are_written_by_logical_coordinates_or_to_the_window(tmp_path):
    a = rolling(tmp_path / "a", 4, 8)
    a.at[5, 2] = 7
    a[-1] = 8
    want = steps(4, 8)
    want[1, 2] = 7
    want[-1] = 8
    assert np.array_equal(a[...], want)


def test_a_key_that_was_meant_for_another_window_writes_nothing(tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    RollingArray.open(tmp_path / "a").roll(steps(4, 6))
    with pytest.raises(gpushard.WindowMovedError, match="refresh"):
        a[0] = 1
    assert np.array_equal(a.refresh()[...], steps(2, 6))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.append(steps(4, 5)),
        lambda a: a.append(steps(4, 6)[:, :5]),
        lambda a: a.append(steps(4, 6)[0]),
        lambda a: a.append(steps(4, 6), at=5),
        lambda a: a.append(steps(-2, 0), at=-2),
        lambda a: a.prepend(steps(-1, 0)),
        lambda a: a.drop(1),
        lambda a: a.drop(6),
        lambda a: a.drop(-2),
        lambda a: a.roll(steps(4, 6), keep=3),
        lambda a: a.move_window(1, 4),
        lambda a: a.delete_shards(0, 1),
        lambda a: a.write_shards(steps(0, 2), at=1),
        lambda a: a.view(1),
    ],
)
def test_what_is_no_whole_shard_is_refused_and_changes_nothing(change, tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    before = document(tmp_path / "a"), shards_of(tmp_path / "a")
    with pytest.raises(gpushard.SelectionError) as caught:
        change(a)
    assert caught.value.array_path is not None
    assert (document(tmp_path / "a"), shards_of(tmp_path / "a")) == before


@pytest.mark.parametrize("keep", [-2, 1.5])
def test_a_roll_that_would_keep_less_than_nothing_is_refused(keep, tmp_path):
    """It would delete what it has just written."""
    a = rolling(tmp_path / "a", 0, 4)
    before = document(tmp_path / "a"), shards_of(tmp_path / "a")
    with pytest.raises(gpushard.OptionError, match="keep"):
        a.roll(steps(4, 6), keep=keep)
    assert (document(tmp_path / "a"), shards_of(tmp_path / "a")) == before


def test_an_array_that_ends_inside_a_shard_cannot_be_appended_to(tmp_path):
    a = RollingArray.create(tmp_path / "a", **PLAIN | {"shape": (3, WIDTH)})
    with pytest.raises(gpushard.SelectionError, match="whole shards"):
        a.append(steps(4, 6))


def test_every_axis_rolls(tmp_path):
    a = rolling(tmp_path / "a", 0, 4, shards=(2, 3))
    a.roll(np.full((4, 3), 5, "i4"), axis=-1)
    assert a.origin == (0, 1)
    want = np.concatenate([steps(0, 4)[:, 3:], np.full((4, 3), 5)], axis=1)
    assert np.array_equal(a[...], want)
    assert shards_of(tmp_path / "a") == {f"c/{i}/{j}" for i in (0, 1) for j in (1, 2)}
    with pytest.raises(gpushard.OptionError):
        a.drop(2, axis=2)


def test_an_array_fills_up_and_then_keeps_its_length(tmp_path):
    a = RollingArray.create(tmp_path / "a", **PLAIN)
    for start in range(0, 12, 2):
        a.roll(steps(start, start + 2), keep=4)
        assert np.array_equal(a[...], steps(max(0, start - 2), start + 2))
    assert shards_of(tmp_path / "a") == {"c/4/0", "c/5/0"}


def test_a_roll_by_more_than_the_window_leaves_nothing_behind(tmp_path):
    a = rolling(tmp_path / "a", 0, 2)
    a.roll(steps(2, 8))
    assert np.array_equal(a[...], steps(6, 8))
    assert shards_of(tmp_path / "a") == {"c/3/0"}
    a.roll(steps(20, 26), at=20)
    assert shards_of(tmp_path / "a") == {"c/12/0"}


def test_a_roll_across_a_gap_deletes_only_what_the_window_left(tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    a.roll(steps(6, 8), at=6, keep=6)
    want = np.concatenate([steps(2, 4), filled(2), steps(6, 8)])
    assert np.array_equal(a[...], want)
    assert shards_of(tmp_path / "a") == {"c/1/0", "c/3/0"}


def test_an_array_that_was_deleted_meanwhile_is_not_written_to(tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    (tmp_path / "a/zarr.json").unlink()
    with pytest.raises(gpushard.StoreError, match=r"zarr\.json is gone"):
        a.append(steps(4, 6))


def test_a_store_that_lists_nothing_cannot_be_swept():
    class Unlisted(MemoryStore):
        supports_listing = False

    with pytest.raises(gpushard.UnsupportedError, match="cannot list"):
        rolling(Unlisted(), 0, 4).sweep()


@pytest.mark.parametrize("ending", ["lock", "new", "undo", "undo.new"])
def test_what_a_killed_writer_left_before_the_window_is_swept(ending, tmp_path):
    a = rolling(tmp_path / "a", 0, 4)
    a.drop(2)
    (tmp_path / "a/c/0").mkdir(exist_ok=True)
    (tmp_path / f"a/c/0/.0.{ending}").touch()
    assert a.sweep() == 1
    assert shards_of(tmp_path / "a") == {"c/1/0"}
    assert np.array_equal(a[...], steps(2, 4))


def test_shards_may_be_left_to_others_to_delete_or_swept(tmp_path):
    a = rolling(tmp_path / "a", -4, 4)
    a.drop(4, delete=False)
    a.write_shards(steps(4, 6), at=4)
    assert np.array_equal(a[...], steps(0, 4))
    assert len(shards_of(tmp_path / "a")) == 5
    assert a.sweep() == 2
    assert shards_of(tmp_path / "a") == {"c/0/0", "c/1/0", "c/2/0"}
    assert not (tmp_path / "a/c/-2").exists()


def test_shards_of_nothing_but_the_fill_value_are_not_stored(tmp_path):
    a = rolling(tmp_path / "a", 0, 2)
    a.append(filled(2)).append(steps(4, 6))
    assert shards_of(tmp_path / "a") == {"c/0/0", "c/2/0"}
    want = np.concatenate([steps(0, 2), filled(2), steps(4, 6)])
    assert np.array_equal(a[...], want)


def test_arrays_without_shards_roll_by_chunks(tmp_path):
    a = rolling(tmp_path / "a", 0, 4, chunks=(2, WIDTH), shards=None)
    a.roll(steps(4, 6))
    assert np.array_equal(a[...], steps(2, 6))
    assert np.array_equal(a.view(-2)[...], steps(4, 6))


@pytest.mark.parametrize("make", [MemoryStore, lambda: "a", lambda: LocalStore(".")])
def test_stores_of_zarr_roll_too(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = make()
    a = RollingArray.create(store, "deep/down", **PLAIN)
    a.append(steps(0, 4)).roll(steps(4, 6))
    assert np.array_equal(a[...], steps(2, 6))
    assert np.array_equal(RollingArray.open(store, "deep/down").at[3], steps(3, 4)[0])


def test_an_array_that_does_not_roll_is_no_rolling_array(tmp_path):
    made = gpushard.create_array(tmp_path / "a", **PLAIN | {"shape": (4, WIDTH)})
    with pytest.raises(gpushard.OptionError, match="open_array"):
        RollingArray.open(tmp_path / "a")
    assert made[0, 0] == FILL


def test_an_origin_of_something_else_is_an_attribute_like_any_other(tmp_path):
    attributes = {"origin": [2, 0], "rolling": "pin"}
    a = gpushard.create_array(
        tmp_path / "a", **PLAIN | {"shape": (4, WIDTH), "attributes": attributes}
    )
    a[...] = steps(0, 4)
    assert shards_of(tmp_path / "a") == {"c/0/0", "c/1/0"}
    with pytest.raises(gpushard.OptionError, match="origin"):
        RollingArray.create(tmp_path / "b", **PLAIN, attributes=attributes)


def test_tags_are_refused_where_there_are_none(tmp_path):
    with pytest.raises(gpushard.UnsupportedError, match="tags"):
        RollingArray.create(tmp_path / "a", **PLAIN, tags={"type": "temp_chunk"})
    assert not (tmp_path / "a/zarr.json").exists()


def test_prepended_values_may_say_where_they_belong(tmp_path):
    a = rolling(tmp_path / "a", 0, 2)
    a.prepend(steps(-6, -4), at=-6)
    want = np.concatenate([steps(-6, -4), filled(4), steps(0, 2)])
    assert np.array_equal(a[...], want)
    with pytest.raises(gpushard.SelectionError, match="append them"):
        a.prepend(steps(-6, -4), at=-6)


def test_what_was_left_before_the_window_is_not_overwritten_by_accident():
    a = rolling(MemoryStore(), 0, 4)
    a.drop(2, delete=False)
    with pytest.raises(gpushard.StoreError, match="at="):
        a.prepend(steps(0, 2))
    assert np.array_equal(a.prepend(steps(0, 2), at=0)[...], steps(0, 4))


def test_a_store_in_which_a_window_cannot_be_moved_safely_is_left_alone(tmp_path):
    store = WrapperStore(LocalStore(tmp_path))
    a = RollingArray.create(store, "a", **PLAIN)
    for change in (
        lambda: a.append(steps(0, 2)),
        lambda: a.prepend(steps(0, 2), at=-2),
        lambda: a.write_shards(steps(0, 2), at=0),
        lambda: a.drop(0),
    ):
        with pytest.raises(gpushard.UnsupportedError, match="other processes"):
            change()
    assert shards_of(tmp_path / "a") == set()
    assert a.refresh().shape == (0, WIDTH)


def test_a_misspelt_argument_is_told_with_the_one_that_may_be_meant(tmp_path):
    create: Any = RollingArray.create
    told = "RollingArray.create has no argument 'orgin'; you may have meant origin="
    with pytest.raises(gpushard.OptionError, match=told):
        create(tmp_path / "a", **PLAIN, orgin=3)
    assert not (tmp_path / "a").exists()


FAR = 2**62


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.append(steps(0, 2), at=FAR),
        lambda a: a.roll(steps(0, 2), at=FAR * 4),
        lambda a: a.prepend(steps(0, 2), at=-FAR),
        lambda a: a.write_shards(steps(0, 2), at=-FAR * 4),
        lambda a: a.move_window(0, FAR + 2),
        lambda a: a.move_window(FAR * 4, FAR * 4 + 2),
    ],
)
def test_a_window_that_no_document_can_have_is_refused_before_anything_is_written(
    change, tmp_path
):
    a = rolling(tmp_path, 0, 4)
    before = shards_of(tmp_path)
    with pytest.raises(gpushard.SelectionError, match="too long along axis 0, or too"):
        change(a)
    assert shards_of(tmp_path) == before
    assert np.array_equal(RollingArray.open(tmp_path)[...], steps(0, 4))


def test_a_roll_far_beyond_the_window_deletes_what_the_window_had(
    tmp_path, monkeypatch
):
    a = rolling(tmp_path, 0, 4)
    deleted = []
    delete = FileWriter.delete

    def noted(writer, keys):
        deleted.extend(keys)
        delete(writer, keys)

    monkeypatch.setattr(FileWriter, "delete", noted)
    a.roll(steps(1000, 1000 + 2), at=1000, keep=2)
    assert deleted == ["c/0/0", "c/1/0"]
    assert np.array_equal(a[...], steps(1000, 1000 + 2))


@pytest.mark.parametrize("origin", [0, ()])
def test_an_array_without_axes_cannot_roll(origin, tmp_path):
    with pytest.raises(gpushard.OptionError, match="without axes cannot roll"):
        RollingArray.create(
            tmp_path / "a", shape=(), chunks=(), dtype="i4", origin=origin
        )
    assert not (tmp_path / "a").exists()
