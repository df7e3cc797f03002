"""`scale_offset` and `cast_value` are undone by NumPy where the bits are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from array_strategies import codec
from gpushard import codecs
from gpushard.codecs import packed_values, zarr_objects
from gpushard.errors import UnsupportedError
from gpushard.layout import CodecSpec
from spec_shards import LITTLE, document, opened, shard_of, sharding
from zarr_oracle import assert_same_bits

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
NAN = {"encode": [["NaN", -99]], "decode": [[-99, "NaN"]]}


def made(name: str, dtype: str, /, **configuration: Any) -> Any:
    """Decoder of a codec; None if it is left to zarr."""
    spec = CodecSpec(name, configuration, "codecs[0]")
    return codecs.array_codec(spec, np.dtype(dtype))


def decoded(decoder: Any, encoded: np.ndarray, dtype: str) -> np.ndarray:
    return decoder.decode(encoded, encoded.shape, np.dtype(dtype))


def test_scaled_floats_are_divided_and_moved_in_their_own_precision():
    decoder = made("scale_offset", "float32", scale=10, offset=0.1)
    found = decoded(decoder, np.array([[3.0, -7.0]], "f4"), "float32")
    want = np.array([[3, -7]], "f4") / np.float32(10) + np.float32(0.1)
    assert_same_bits(found, want)


@pytest.mark.parametrize("name", ["scale_offset", "cast_value"])
def test_an_element_without_axes_stays_an_array(name):
    how = {"cast_value": {"data_type": "int8", "scalar_map": NAN}}.get(name, {})
    decoder = made(name, "float32", **how)
    stored = np.array(-99, "i1" if how else "f4")
    found = decoded(decoder, stored, "float32")
    assert isinstance(found, np.ndarray)
    assert_same_bits(found, np.array(np.nan if how else -99, "f4"))


def test_a_stored_integer_may_stand_for_no_number():
    decoder = made("cast_value", "float64", data_type="int16", scalar_map=NAN)
    assert decoder.encoded_spec((2, 3), np.dtype("f8")) == ((2, 3), np.dtype("i2"))
    found = decoded(decoder, np.array([-99, 99, 0], "i2"), "float64")
    assert_same_bits(found, np.array([np.nan, 99, 0]))


def test_floats_that_overflow_raise_no_warning():
    decoder = made("scale_offset", "float16", scale=1e-5, offset=1)
    found = decoded(decoder, np.array([6e4, np.nan], "f2"), "float16")
    assert np.isinf(found[0])
    assert np.isnan(found[1])


def test_memory_of_the_result_and_of_a_mask_is_told():
    float32 = np.dtype("f4")
    assert made("scale_offset", "float32").working_nbytes(10, float32) == 40
    cast = {"data_type": "int16"}
    assert made("cast_value", "float32", **cast).working_nbytes(10, float32) == 40
    masked = made("cast_value", "float32", scalar_map=NAN, **cast)
    assert masked.working_nbytes(10, float32) == 50


@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [
        ("int32", {"scale": 2}),  # the remainder must be zero
        ("float32", {"scale": 0}),
        ("float32", {"scale": "0x41200000"}),
        ("float32", {"scale": "NaN"}),
        ("float32", {"scale": 1e300}),
        ("float32", {"scale": True}),
        ("float32", {"scale": None}),
        ("float32", {"other": 1}),
        ("float16", {"offset": 10**400}),
        ("complex64", {}),
        ("bool", {}),
    ],
)
def test_other_scales_are_left_to_zarr(dtype, configuration):
    assert made("scale_offset", dtype, **configuration) is None


@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [
        ("float32", {}),
        ("float32", {"data_type": "bfloat16"}),
        ("float32", {"data_type": {"name": "int16"}}),
        ("float32", {"data_type": "float64"}),
        ("float32", {"data_type": "int32", "rounding": "towards-zero"}),
        ("float16", {"data_type": "int16"}),
        ("float32", {"data_type": "int16", "rounding": "x"}),
        ("float32", {"data_type": "int16", "out_of_range": "x"}),
        ("float32", {"data_type": "float16", "out_of_range": "wrap"}),
        ("float32", {"data_type": "int16", "other": 1}),
        ("int16", {"data_type": "int32"}),
        ("int16", {"data_type": "float32"}),
        ("int8", {"data_type": "uint8"}),
        ("bool", {"data_type": "int8"}),
        ("float32", {"data_type": "float16", "scalar_map": NAN}),
        ("float32", {"data_type": "uint8", "scalar_map": NAN}),
        ("float32", {"data_type": "int16", "scalar_map": []}),
        ("float32", {"data_type": "int16", "scalar_map": {"x": []}}),
        ("float32", {"data_type": "int16", "scalar_map": {"decode": {}}}),
        ("float32", {"data_type": "int16", "scalar_map": {"decode": [1]}}),
        ("float32", {"data_type": "int16", "scalar_map": {"decode": [[1]]}}),
        ("float32", {"data_type": "int16", "scalar_map": {"decode": [[1.5, 1]]}}),
        ("float32", {"data_type": "int16", "scalar_map": {"decode": [[1, "x"]]}}),
        ("int16", {"data_type": "int8", "scalar_map": {"decode": [[1, "NaN"]]}}),
    ],
    ids=str,
)
def test_other_casts_are_left_to_zarr(dtype, configuration):
    assert made("cast_value", dtype, **configuration) is None


def cast_by_zarr(configuration: dict[str, Any], encoded: Any, dtype: str) -> Any:
    """Elements as zarr's codec decodes them."""
    from zarr.codecs import CastValue

    codec = CastValue.from_dict({"name": "cast_value", "configuration": configuration})
    maps = codec._get_scalar_map("decode")
    return codec._do_cast(encoded, target_dtype=np.dtype(dtype), scalar_map=maps)


@given(st.data())
def test_every_cast_that_is_not_left_to_zarr_gives_its_bits(data):
    pytest.importorskip("cast_value_rs", reason="what zarr casts with")
    dtype = data.draw(st.sampled_from(FLOATS + INTEGERS))
    stored = np.dtype(data.draw(st.sampled_from(INTEGERS + FLOATS[:2])))
    encoded = data.draw(hnp.arrays(stored, hnp.array_shapes(max_dims=2)))
    how: dict[str, Any] = {"data_type": stored.name}
    rounding = data.draw(st.sampled_from(packed_values._ROUNDINGS))
    if rounding != "nearest-even":
        how["rounding"] = rounding
    if data.draw(st.booleans()):
        how["out_of_range"] = "clamp"
    if stored.kind in "iu" and data.draw(st.booleans()):
        some = data.draw(st.sampled_from(encoded.reshape(-1).tolist()))
        value = 7 if dtype in INTEGERS else data.draw(st.sampled_from(["NaN", 2.5]))
        how["scalar_map"] = {"decode": [[some, value]]}
    decoder = made("cast_value", dtype, **how)
    if decoder is None:
        return
    found = decoded(decoder, encoded, dtype)
    want = cast_by_zarr(how, encoded, dtype)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)
    # Which NaN it is nobody says: of float16, NumPy keeps signalling ones.
    is_number = ~np.isnan(want)
    assert_same_bits(found[is_number], want[is_number])


@given(st.data())
def test_every_scale_that_is_not_left_to_zarr_gives_its_bits(data):
    zarr_codec = pytest.importorskip(
        "zarr.codecs.scale_offset", reason="this zarr has no such codec"
    )
    dtype = np.dtype(data.draw(st.sampled_from(FLOATS)))
    numbers = st.one_of(st.floats(width=16), st.integers(-(10**6), 10**6))
    scale, offset = data.draw(numbers), data.draw(numbers)
    decoder = made("scale_offset", dtype.name, scale=scale, offset=offset)
    if decoder is None:
        return
    encoded = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=2)))
    with np.errstate(all="ignore"):
        want = zarr_codec._decode(
            encoded, dtype.type(offset), dtype.type(scale), scale_repr=scale
        )
    assert_same_bits(decoded(decoder, encoded, dtype.name), want)


def test_packed_floats_are_read_without_zarrs_codecs():
    """Shards of two inner chunks of three numbers with one digit; one is missing."""
    steps = [
        codec("scale_offset", offset=250, scale=10),
        codec("cast_value", data_type="int16", scalar_map=NAN),
        codec("bytes", endian="big"),
    ]
    shard = shard_of(*(np.array(n, ">i2").tobytes() for n in ([1, 2, 3], [0, -99, 4])))
    chain = sharding((3,), codecs=steps)
    a = opened(
        document((12,), (6,), chain, dtype="float32", fill_value=8), **{"0": shard}
    )
    stored = np.array([1, 2, 3, 0, np.nan, 4], "f4")
    want = np.append(stored / np.float32(10) + np.float32(250), np.full(6, 8, "f4"))
    assert_same_bits(a[...], want)
    assert_same_bits(a[5:0:-2], want[5:0:-2])
    libraries = {placed.codec: placed.library for placed in a.explain().codecs}
    assert libraries["cast_value"] == libraries["scale_offset"]
    assert libraries["cast_value"].startswith("numpy")


def test_what_an_old_zarr_cannot_decode_asks_for_a_newer_one(monkeypatch):
    def unknown(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(zarr_objects, "get_codec_class", unknown)
    chain = [codec("cast_value", data_type="int16", rounding="x"), LITTLE]
    with pytest.raises(UnsupportedError, match=r"'cast_value'.*install a newer zarr"):
        opened(document((6,), (6,), *chain, dtype="float32"))
