"""An error of a loader names the samples that it is about, and no others."""

from __future__ import annotations

import re

import numpy as np
import pytest
import zarr

import gpushard
from gpushard import Loader
from gpushard.rolling import RollingArray
from loader_data import IMAGES


@pytest.fixture
def place(tmp_path):
    """`IMAGES` in inner chunks of 4 samples and shards of 12, with checksums."""
    z = zarr.create_array(
        tmp_path / "images",
        shape=IMAGES.shape,
        chunks=(4, 2, 3),
        shards=(12, 2, 3),
        dtype="u2",
        compressors=zarr.codecs.ZstdCodec(checksum=True),
    )
    z[...] = IMAGES
    return tmp_path / "images"


def named_samples(error):
    (note,) = error.__notes__
    return set(map(int, re.findall(r"\d+", note.partition(" and ")[0])))


def test_an_error_of_one_sample_names_one_sample(place):
    shard = place / "c/2/0/0"
    shard.write_bytes(b"\0" * 8 + shard.read_bytes()[8:])
    damaged = gpushard.open_array(place)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(damaged, batch_size=1, sampler=[25], prefetch_factor=0))
    assert caught.value.__notes__ == ["while a loader read sample 25 of array"]


@pytest.mark.parametrize(
    "order", [{}, {"shuffle": True}, {"shuffle": True, "block": 9}]
)
def test_a_damaged_index_names_the_samples_of_its_shard(place, order):
    shard = place / "c/2/0/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    loader = Loader(gpushard.open_array(place), batch_size=8, **order)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(loader)
    assert caught.value.inner_chunk is None
    assert named_samples(caught.value)
    assert named_samples(caught.value) <= set(range(24, 36))


def test_an_error_of_many_samples_names_eight_and_counts_the_others(place):
    (place / "c/2/0/0").write_bytes(b"?")
    a = gpushard.open_array(place)
    for n_more, others in [(0, ""), (1, " and 1 more")]:
        sampler = list(range(24, 32 + n_more))
        with pytest.raises(gpushard.CorruptShardError) as caught:
            list(Loader(a, batch_size=len(sampler), sampler=sampler))
        named = f"24, 25, 26, 27, 28, 29, 30, 31{others} of array"
        assert caught.value.__notes__ == [f"while a loader read samples {named}"]


@pytest.mark.parametrize(("axis", "first"), [(0, 103 + 24), (1, 24)])
def test_an_error_of_joined_arrays_names_the_samples_of_the_one_it_is_about(
    place, axis, first
):
    zarr.save_array(place.parent / "others", IMAGES)
    (place / "c/2/0/0").write_bytes(b"?")
    arrays = [gpushard.open_array(place.parent / "others"), gpushard.open_array(place)]
    both = gpushard.concat(arrays, axis=axis)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(both, batch_size=16))
    assert named_samples(caught.value)
    assert named_samples(caught.value) <= set(range(first, first + 12))


def test_an_error_names_samples_that_need_the_shard_in_either_of_two_ways(place):
    (place / "c/2/0/0").write_bytes(b"?")
    a = gpushard.open_array(place)
    pairs = Loader({"now": a, "next": a}, lead={"next": 20}, sampler=[4, 30, 40])
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(pairs)
    assert named_samples(caught.value) == {4, 30}


def test_an_error_names_no_patches_beside_its_shard(tmp_path):
    options = {"dtype": "u2", "chunks": (4, 1, 3), "shards": (12, 1, 3)}
    wide = zarr.create_array(tmp_path, shape=(36, 2, 3), **options)
    wide[...] = IMAGES[:36]
    (tmp_path / "c/2/1/0").write_bytes(b"?")
    patches = {"window": (3, 1), "batch_size": 24}  # two beside each other
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(gpushard.open_array(tmp_path), **patches))
    assert named_samples(caught.value) == {17, 19, 21, 23}


@pytest.mark.parametrize(
    ("lead", "others"), [(-5, [0]), (5, [7]), (-5, [0, 7]), (1, [7])]
)
def test_a_damaged_row_that_only_lies_nearest_to_a_window_is_not_read(
    tmp_path, lead, others
):
    options = {"dtype": "u2", "chunks": (1, 3), "fill_value": 9}
    z = zarr.create_array(tmp_path, shape=(8, 3), compressors=None, **options)
    z[...] = np.arange(8)[:, None]
    for end in (0, 7):
        (tmp_path / f"c/{end}/0").write_bytes(b"?")
    windows = {"window": 1, "lead": lead, "padding": "fill"}
    loader = Loader(gpushard.open_array(tmp_path), sampler=others, **windows)
    got = [int(batch.min()) for batch in loader]
    assert got == [9 if n == (0 if lead < 0 else 7) else n + lead for n in others]


def test_a_damaged_index_of_a_rolled_window_names_samples_of_the_window(tmp_path):
    options = {"dtype": "u2", "chunks": (4, 2, 3), "shards": (12, 2, 3)}
    rolling = RollingArray.create(tmp_path / "live", shape=(0, 2, 3), **options)
    rolling.append(IMAGES[:48])
    rolling.roll(IMAGES[:24])
    shard = tmp_path / "live/c/4/0/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    array = gpushard.open_array(tmp_path / "live")
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(array, batch_size=4, prefetch_factor=0))
    assert caught.value.shard_key == "c/4/0/0"
    assert named_samples(caught.value)
    assert named_samples(caught.value) <= set(range(24, 36))
