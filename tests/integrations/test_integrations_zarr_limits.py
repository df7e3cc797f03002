"""The limits on what an array may ask for, through zarr's codec pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import gpushard
from gpushard import LimitError
from hostile_shards import ZSTD
from spec_shards import LITTLE, document

GIB = 1 << 30
OURS = {"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}


def sharded(place: Path) -> Path:
    """Array of 16 KiB in four inner chunks of 4 KiB, two a shard."""
    made = zarr.create_array(
        place, shape=(16384,), dtype="u1", shards=(8192,), chunks=(4096,),
        compressors=ZstdCodec(), fill_value=0,
    )  # fmt: skip
    made[:] = np.resize(np.arange(1, 252), 16384)
    return place


def write_bomb(place: Path, n: int) -> Path:
    """Array of one chunk of `n` bytes, of which 64 are stored."""
    (place / "c").mkdir(parents=True)
    meta = document((n,), (n,), LITTLE, ZSTD)
    (place / "zarr.json").write_text(json.dumps(meta))
    (place / "c/0").write_bytes(bytes(64))
    return place


@pytest.mark.parametrize("is_strict", [False, True])
def test_zarrs_pipeline_refuses_what_is_beyond_the_limits(tmp_path, is_strict):
    """zarr has none, and would decode what was refused."""
    place = sharded(tmp_path / "a")
    with zarr.config.set({**OURS, "gpushard.strict": is_strict}):
        a = zarr.open_array(place, mode="r")
        for name, most in (("max_chunk_nbytes", 4095), ("max_index_nbytes", 31)):
            with zarr.config.set({f"gpushard.{name}": most}):
                fresh = zarr.open_array(place, mode="r")
                with pytest.raises(LimitError, match=f"gpushard.{name}") as refused:
                    fresh[:3]
            assert f"at most {most} bytes" in str(refused.value)
            # The limits are those of the time of the read that they refused.
            assert np.array_equal(fresh[:3], [1, 2, 3])
        assert np.array_equal(a[:3], [1, 2, 3])


def test_a_limit_that_is_lowered_holds_for_arrays_that_were_read_before(tmp_path):
    place = sharded(tmp_path / "a")
    with zarr.config.set(OURS):
        a = zarr.open_array(place, mode="r")
        for name, most in (("max_chunk_nbytes", 4095), ("max_index_nbytes", 31)):
            assert np.array_equal(a[:3], [1, 2, 3])
            with (
                zarr.config.set({f"gpushard.{name}": most}),
                pytest.raises(LimitError, match=f"at most {most} bytes"),
            ):
                a[:3]
        assert np.array_equal(a[:3], [1, 2, 3])


def test_what_is_known_of_an_array_is_kept_while_the_limits_are_the_same(tmp_path):
    place = sharded(tmp_path / "a")
    with zarr.config.set(OURS):
        a = zarr.open_array(place, mode="r")
        a[:3]
        known = a._async_array.codec_pipeline._array
        prepared = known._prepared
        a[5:9]
        assert known._prepared is prepared
        assert list(prepared.sources) == [""]


def test_a_chunk_of_64_gib_is_refused_through_zarr(tmp_path):
    n = 64 * GIB
    place = write_bomb(tmp_path / "a", n)
    with zarr.config.set(OURS), pytest.raises(LimitError, match=f"got {n} bytes"):
        zarr.open_array(place, mode="r")[:3]


@pytest.mark.parametrize("most", [0, "4 GiB", True])
def test_a_limit_in_zarrs_configuration_that_is_none_is_refused(tmp_path, most):
    place = sharded(tmp_path / "a")
    with (
        zarr.config.set({**OURS, "gpushard.max_chunk_nbytes": most}),
        pytest.raises(gpushard.OptionError, match="max_chunk_nbytes"),
    ):
        zarr.open_array(place, mode="r")[:3]
