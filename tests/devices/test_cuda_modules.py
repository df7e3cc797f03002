"""Kernels that a CUDA device has loaded, over a stand-in for CuPy."""

from __future__ import annotations

import pytest

from cuda_cases import forget, opened, stored, two_gpus
from zarr_oracle import assert_same_bits


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


def damage(file, how):
    whole = file.read_bytes()
    if how == "cut off":
        file.write_bytes(whole[:-7])
    elif how == "empty":
        file.write_bytes(b"")
    else:
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])


@pytest.mark.parametrize("how", ["cut off", "empty", "changed"])
def test_kept_kernels_that_are_damaged_are_compiled_again(cupy, tmp_path, how):
    """As after a machine has stopped before its files were on the disk."""
    values = stored(tmp_path / "a")
    opened(tmp_path / "a")[...]
    kept = list((tmp_path / "cache" / "gpushard" / "kernels").iterdir())
    n_compiled = len(cupy.nvrtc.compiled)
    assert len(kept) == n_compiled > 3
    for file in kept:
        damage(file, how)
    for _ in range(2):  # the second time they are kept again
        forget()
        assert_same_bits(opened(tmp_path / "a")[...].get(), values)
        assert len(cupy.nvrtc.compiled) == 2 * n_compiled
