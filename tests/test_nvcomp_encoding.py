"""The encoding half of the nvCOMP binding: the vendor's library, and the stand-in."""

from __future__ import annotations

import ctypes
import os

import pytest

from cuda_host.standin import load_standin
from gpushard.devices.nvcomp import Alignments, Nvcomp
from gpushard.devices.nvcomp_abi import (
    Algorithm,
    CompressOptions,
    NvcompStatus,
    bound_symbols,
)
from gpushard.errors import DeviceError
from nvcomp_batch import Batch, payloads, vendor_library

ENCODERS_BOUND = [a for a in Algorithm if a.max_encodable_nbytes]
each_encoder = pytest.mark.parametrize(
    "algorithm", ENCODERS_BOUND, ids=lambda a: a.name
)


@pytest.fixture(scope="module")
def vendor():
    return vendor_library()


@pytest.fixture
def standin():
    stand = load_standin()
    yield stand
    stand.reset()


@pytest.fixture
def nvcomp(standin):
    return Nvcomp(standin.path)


@each_encoder
def test_stand_in_and_vendor_library_ask_for_the_same_alignments_to_encode(
    vendor, nvcomp, algorithm
):
    expected = {
        Algorithm.ZSTD: Alignments(input=4, output=1, temp=1),
        Algorithm.LZ4: Alignments(input=1, output=1, temp=2),
    }.get(algorithm, Alignments(input=1, output=8, temp=8))
    assert vendor.encoding_alignments(algorithm) == expected
    assert nvcomp.encoding_alignments(algorithm) == expected


@each_encoder
def test_the_vendor_library_has_room_for_the_largest_input_that_is_encoded(
    vendor, nvcomp, algorithm
):
    for library in (vendor, nvcomp):
        for nbytes in (1, 4096, algorithm.max_encodable_nbytes):
            assert library.encoded_limit(algorithm, nbytes) > nbytes
    if algorithm is Algorithm.LZ4:
        with pytest.raises(DeviceError, match="CHUNK_SIZE_TOO_LARGE"):
            vendor.encoded_limit(algorithm, algorithm.max_encodable_nbytes + 1)


def test_encoding_options_arrive_by_value(vendor, standin):
    for path in (vendor.path, standin.path):
        library = ctypes.CDLL(str(path))
        function = library["nvcompBatchedDeflateCompressGetTempSize"]
        function.argtypes = dict(bound_symbols())[function.__name__]
        nbytes, unknown = ctypes.c_size_t(), CompressOptions(algorithm=77)
        status = function(1, 9, unknown, ctypes.byref(nbytes), 9, None)
        assert status == NvcompStatus.NOT_SUPPORTED


@each_encoder
def test_without_a_driver_the_vendor_library_encodes_nothing(vendor, algorithm):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a driver: host tables would be read on the device")
    batch = Batch([b"x"], [300])
    with pytest.raises(DeviceError, match=r"CUDA_ERROR \(1000\)"):
        batch.encode(vendor, algorithm, temp_nbytes=1 << 20)


@each_encoder
def test_what_is_encoded_decodes_to_the_same_bytes(standin, nvcomp, algorithm):
    plain = [data[: algorithm.max_encodable_nbytes] for data in payloads()]
    room = nvcomp.encoded_limit(algorithm, max(map(len, plain)))
    batch = Batch(plain, [room] * len(plain), alignment=8)
    batch.encode(nvcomp, algorithm)
    assert batch.statuses.tolist() == [0] * len(plain)
    streams = [batch.decoded(i) for i in range(len(plain))]
    back = Batch(streams, [len(data) for data in plain])
    back.decode(nvcomp, algorithm)
    assert [back.decoded(i) for i in range(len(plain))] == plain
    assert standin.complaints == []


@each_encoder
def test_too_little_scratch_and_misaligned_input_are_complained_about(
    standin, nvcomp, algorithm
):
    batch = Batch([bytes(100)], [4000], alignment=1)
    batch.encode(nvcomp, algorithm, temp_nbytes=8)
    wants = ["too little scratch (8)"]
    if algorithm is Algorithm.ZSTD:
        wants.append("a stream is misaligned (0)")
    assert standin.complaints == wants
