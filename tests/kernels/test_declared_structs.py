"""Structs that kernels declare, as the NumPy data types that the host packs."""

from __future__ import annotations

import re
from types import MappingProxyType

import numpy as np
import pytest

from cuda_host.statuses import Status
from gpushard.devices import structs
from gpushard.devices.kernels import KernelSource, load_kernel_sources
from gpushard.devices.scattering.transfer import MAX_AXES
from gpushard.devices.structs import (
    BYTE_SHUFFLED,
    GATE,
    SCATTER,
    StreamClass,
    declared_struct,
    fast_divisor,
)
from gpushard.errors import DeviceError

HEADER = """
struct Pair {
    int64_t first;  // where it begins; a comment with a semicolon
    uint32_t second;
};
constexpr int SIDES = 3;
"""
SOURCE = """
template <int R>
struct All {
    const uint8_t* data;
    const Pair* const pairs;
    float scale;
    Pair one;
    Pair several[SIDES];
    uint32_t last[R];
    uint32_t fixed[2];
};

struct Odd {
    uint32_t bits : 4;
};

struct Foreign {
    size_t nbytes;
};
"""


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """`gs_own` has the source above; the others are the project's."""
    source = KernelSource(
        name="own.cu",
        text=SOURCE,
        headers=MappingProxyType({"own.cuh": HEADER}),
        threads=MappingProxyType({"gs_own": 32}),
        digest="",
    )
    own = {**load_kernel_sources(), "gs_own": source}
    monkeypatch.setattr(structs, "load_kernel_sources", lambda: own)


def test_fields_lie_where_a_c_compiler_puts_them():
    struct = declared_struct("gs_own", "All", R=5)
    places = {name: place for name, (_, place, *_) in struct.fields.items()}
    assert places == {
        "data": 0,
        "pairs": 8,
        "scale": 16,
        "one": 24,  # aligned as its int64_t
        "several": 40,
        "last": 40 + 3 * 16,
        "fixed": 40 + 3 * 16 + 5 * 4,
    }
    assert struct.itemsize == 40 + 3 * 16 + 7 * 4 + 4  # padded to words of 8 bytes
    assert struct["one"].names == ("first", "second")
    assert struct["one"].itemsize == 16
    assert struct["data"] == np.uint64


@pytest.mark.parametrize(
    ("name", "unknown"), [("Odd", "bits : 4"), ("Foreign", "size_t"), ("No", "'No'")]
)
def test_what_is_not_written_plainly_is_refused(name, unknown):
    with pytest.raises(DeviceError, match=re.escape(unknown)):
        declared_struct("gs_own", name)


def test_a_struct_of_numbers_and_pointers_is_read_from_its_kernel():
    assert GATE.itemsize == 15 * 8
    assert GATE["decoded_nbytes"] == np.uint64
    assert GATE["n_rows"] == np.uint32


def test_a_multiplication_by_a_divisors_constants_divides_by_it():
    rng = np.random.default_rng(4)
    powers = 2 ** np.arange(31)
    many = rng.integers(1, 2**31, 2000)
    divisors = np.concatenate([[1, 3, 7, 2**31 - 1], powers, powers[1:] + 1, many])
    by = fast_divisor(divisors)
    np.testing.assert_array_equal(by["divisor"], divisors)
    magic = by["magic"].astype(np.uint64)
    whole = divisors.astype(np.uint64)
    highest = np.uint64(2**32 - 1)
    last_multiple = highest // whole * whole
    around = [last_multiple, last_multiple - np.uint64(1), whole, whole - np.uint64(1)]
    for value in (*around, highest, np.uint64(0), rng.integers(0, 2**32, len(whole))):
        n = np.broadcast_to(value, whole.shape).astype(np.uint64)
        high = magic * n >> np.uint64(32)  # as `fast_quotient` of the kernels
        found = (high + ((n - high) >> by["shift_first"])) >> by["shift_last"]
        np.testing.assert_array_equal(found, n // whole)


def test_axes_beyond_the_columns_of_the_scatter_kernels_are_refused():
    assert SCATTER[4]["columns"].shape == (MAX_AXES,)


def test_statuses_and_classes_of_streams_are_numbered_as_in_the_kernels():
    headers = load_kernel_sources()["gs_blosc_count"].headers
    found = re.findall(
        r"^constexpr Status STATUS_(\w+) = (\d+);", headers["common.cuh"], re.M
    )
    assert {name: int(number) for name, number in found} == Status.__members__
    classes = re.findall(r"CLASS_(\w+)[,\s]", headers["blosc_format.cuh"].split("}")[1])
    assert classes[: len(StreamClass)] == [kind.name for kind in StreamClass]
    filters = re.findall(r"FILTER_\w+", headers["shuffle_format.cuh"])
    assert filters[BYTE_SHUFFLED] == "FILTER_BYTE_SHUFFLE"
