"""An error of a loader names the samples that it is about, and no others."""

from __future__ import annotations

import re

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
