"""How threads that encode are divided among shards."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpushard
from gpushard.codecs.chain_encoder import ChainEncoder
from gpushard.writing import encode as encoding
from gpushard.writing.encoders import Crew


def test_shards_that_are_encoded_side_by_side_divide_the_threads():
    crew = Crew(8)
    assert crew.n_each == 8
    with crew.at_a_shard():
        assert crew.n_each == 8
        with crew.at_a_shard(), crew.at_a_shard():
            assert crew.n_each == 2
        assert crew.n_each == 8


def test_each_of_more_shards_than_threads_has_one():
    crew = Crew(2)
    with crew.at_a_shard(), crew.at_a_shard(), crew.at_a_shard():
        assert crew.n_each == 1


def test_a_shard_that_fails_gives_its_threads_back():
    crew = Crew(4)
    with pytest.raises(KeyboardInterrupt), crew.at_a_shard(), crew.at_a_shard():
        raise KeyboardInterrupt
    assert crew.n_each == 4


def test_two_shards_of_a_write_have_a_thread_each(tmp_path, monkeypatch):
    both, noted = threading.Barrier(2), []
    encode, are_fill = ChainEncoder.encode, encoding.are_fill

    def waiting(*arguments):
        both.wait(30)  # until the other shard is as far
        return are_fill(*arguments)

    def noting(self, arrays, n_threads=1):
        if arrays.dtype == np.uint16:  # not an index
            noted.append(n_threads)
            both.wait(30)  # no shard ends before the other has its threads
        return encode(self, arrays, n_threads)

    monkeypatch.setattr(encoding, "are_fill", waiting)
    monkeypatch.setattr(ChainEncoder, "encode", noting)
    a = gpushard.create_array(
        tmp_path / "a",
        shape=(4, 8),
        dtype="u2",
        chunks=(2, 2),
        shards=(2, 8),
        options=gpushard.Options(threads=2),
    )
    a[...] = values = np.arange(32, dtype="u2").reshape(4, 8)
    assert noted == [1, 1]
    assert (a[...] == values).all()
