"""Long reads of unsharded arrays on the short way, which interrupts may end."""

from __future__ import annotations

import pytest

import gpushard
from gpushard.fused import choice, opening, shares
from gpushard.fused.code.loading import CompiledLoops
from gpushard.fused.short import unsharded as short_unsharded
from unsharded_cases import (
    CHAINS,
    COMPILED,
    need_opened_files,
    opened,
    stored,
    values_of,
)
from zarr_oracle import assert_same_bits

pytest.importorskip("numba", reason="the compiled loops are an extra")
pytestmark = need_opened_files

SHORT = COMPILED.but(small_read_chunks=gpushard.Options().small_read_chunks)


def test_long_reads_of_one_thread_are_several_calls(tmp_path, monkeypatch):
    values = values_of(with_gaps=False)
    stored(tmp_path, values, chunks=(2, 2), **CHAINS["zstd"])
    choice._load()
    monkeypatch.setattr(opening, "_SLOW_US", 1e9)
    calls = []
    plain = CompiledLoops.place_chunk_files

    def place_chunk_files(self, *given):
        calls.append(given)
        plain(self, *given)

    monkeypatch.setattr(CompiledLoops, "place_chunk_files", place_chunk_files)
    monkeypatch.setattr(short_unsharded, "MOST_AT_ONCE", 64)
    monkeypatch.setattr(shares, "_SMALLEST_NBYTES", 64)
    for one_call_us, n_least, n_most in ((1e9, 1, 1), (0, 3, 99)):
        monkeypatch.setattr(short_unsharded, "_ONE_CALL_US", one_call_us)
        a = opened(tmp_path, SHORT.but(threads=1))
        a[:2]  # tries a few files, which is trusted for a while
        calls.clear()
        assert_same_bits(a[...], values)
        assert n_least <= len(calls) <= n_most
