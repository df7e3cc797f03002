"""Encoders that an array keeps for its next write."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.codecs import chain_encoder, compressing
from gpushard.writing.encoders import encoders_of
from gpushard.writing.order import payload_order, payload_rank


@pytest.fixture
def array(tmp_path):
    zarr.create_array(tmp_path, shape=(20,), dtype="i4", chunks=(5,), shards=(10,))
    return gpushard.open_array(tmp_path, device="cpu")


def test_zarr_is_asked_for_codecs_at_the_first_write_only(array, monkeypatch):
    asked, real = [], chain_encoder.codec_object
    fitted, fit = [], chain_encoder.fit
    monkeypatch.setattr(
        chain_encoder, "codec_object", lambda spec: asked.append(spec) or real(spec)
    )
    monkeypatch.setattr(
        chain_encoder, "fit", lambda *given: fitted.append(given) or fit(*given)
    )
    array[...] = np.arange(20)
    assert asked
    assert fitted
    del asked[:], fitted[:]
    array[3:12] = 7
    array[0] = 1
    assert (asked, fitted) == ([], [])
    np.testing.assert_array_equal(array[...], [1, 1, 2, *[7] * 9, *range(12, 20)])


def test_no_write_leaves_a_context_behind(array, monkeypatch):
    """Those of high levels take many MiB for each thread."""
    made: list[weakref.ref[object]] = []

    class Noted(compressing._ZstdContexts):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr(compressing, "_ZstdContexts", Noted)
    array[...] = 1
    assert made
    assert not [one for one in made if one() is not None]


def test_encoders_of_two_writes_share_no_context(array):
    one, other = (encoders_of(array.source)[0] for _ in range(2))
    for encoder in (one, other):
        encoder.encode(np.zeros((1, 5), "i4"))
    ours, theirs = (encoder._steps((5,))[-1].own for encoder in (one, other))
    assert ours is not None
    assert ours.__self__ is not theirs.__self__


def test_inner_chunks_of_another_shape_are_fitted_anew(array):
    encoder = encoders_of(array.source)[0]
    for shape in ((5,), (3,), (5,)):
        values = np.arange(shape[0], dtype="i4")
        _, encoded = encoder.encode(values[np.newaxis])
        assert len(encoded.items()) == 1
        assert encoder._steps(shape)[0].array.shape == shape


def test_nobody_can_change_the_order_of_inner_chunks_for_all_others():
    for kept in (payload_order, payload_rank):
        with pytest.raises(ValueError, match="read-only"):
            kept((2, 3), "morton")[0] = 1
