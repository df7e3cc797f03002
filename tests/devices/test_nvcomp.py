"""The nvCOMP binding fits the vendor's library, and works through the stand-in."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from cuda_host.build import HERE
from cuda_host.launch import in_sanitized_process
from cuda_host.standin import ENCODERS, load_standin
from gpushard.devices import nvcomp as nvcomp_module
from gpushard.devices.nvcomp import Alignments, Nvcomp, load_nvcomp
from gpushard.devices.nvcomp_abi import (
    MAX_STREAM_NBYTES,
    Algorithm,
    AlignmentRequirements,
    CompressOptions,
    DecompressOptions,
    NvcompStatus,
    Properties,
    bound_symbols,
    status_name,
    symbol_of,
)
from gpushard.errors import DeviceError, UnsupportedError
from nvcomp_batch import Batch, payloads, vendor_library

# The C types of nvCOMP's headers, for those that are passed or filled.
STRUCT_NBYTES = {
    DecompressOptions: 64,
    CompressOptions: 64,
    Properties: 8,
    AlignmentRequirements: 24,
}

# Answers of nvCOMP 6.0.0 without a driver: streams, largest, total -> scratch.
ZSTD_TEMP_NBYTES = {
    (1, 100, 100): 7_236,
    (10, 65_536, 655_360): 2_035_440,
    (1000, 4_096, 4_096_000): 19_224_000,
    (1000, 2**20, 2**24): 57_267_648,
    (1000, 2**20, 1000 * 2**20): 3_201_216_000,
    (1, 2**31 - 1, 2**31 - 1): 6_556_086_897,
}

each_algorithm = pytest.mark.parametrize("algorithm", Algorithm, ids=lambda a: a.name)


@pytest.fixture(scope="module")
def vendor():
    """The vendor's own library; it needs no driver to be loaded."""
    return vendor_library()


@pytest.fixture
def standin():
    stand = load_standin()
    yield stand
    stand.reset()


@pytest.fixture
def nvcomp(standin):
    return Nvcomp(standin.path)


# ---- the vendor's library


def test_every_function_bound_is_in_the_vendor_library(vendor):
    assert vendor.version[0] == 6
    assert vendor.cuda_major in (12, 13)
    assert vendor.label.startswith("nvCOMP 6.")


def test_structures_have_the_sizes_of_the_headers():
    found = {struct: ctypes.sizeof(struct) for struct in STRUCT_NBYTES}
    assert found == STRUCT_NBYTES


@each_algorithm
def test_stand_in_and_vendor_library_ask_for_the_same_alignments(
    vendor, nvcomp, algorithm
):
    expected = {
        Algorithm.ZSTD: Alignments(input=1, output=1, temp=8),
        Algorithm.DEFLATE: Alignments(input=4, output=1, temp=1),
    }.get(algorithm, Alignments(input=1, output=1, temp=1))
    assert vendor.alignments(algorithm) == expected
    assert nvcomp.alignments(algorithm) == expected


@each_algorithm
def test_stand_in_and_vendor_library_ask_for_the_same_scratch(
    vendor, nvcomp, algorithm
):
    for sizes, zstd in ZSTD_TEMP_NBYTES.items():
        expected = zstd if algorithm is Algorithm.ZSTD else 0
        assert vendor.temp_nbytes(algorithm, *sizes) == expected
        assert nvcomp.temp_nbytes(algorithm, *sizes) == expected


@each_algorithm
def test_the_largest_stream_is_where_the_vendor_library_draws_the_line(
    vendor, nvcomp, algorithm
):
    is_narrow = algorithm in (Algorithm.ZSTD, Algorithm.SNAPPY)
    largest = MAX_STREAM_NBYTES if is_narrow else 2**32 - 1
    for library in (vendor, nvcomp):
        library.temp_nbytes(algorithm, 1, largest, largest)
        with pytest.raises(DeviceError, match="CHUNK_SIZE_TOO_LARGE"):
            library.temp_nbytes(algorithm, 1, largest + 1, largest + 1)


@each_algorithm
def test_options_arrive_by_value(vendor, standin, algorithm):
    # The hardware backend is refused, or not, by algorithm: only a library that sees
    # the field can tell.
    hardware = DecompressOptions(backend=1)
    refused = NvcompStatus.INVALID_VALUE if algorithm is Algorithm.ZSTD else 0
    for path in (vendor.path, standin.path):
        library = ctypes.CDLL(str(path))
        function = library[symbol_of(algorithm, "DecompressGetTempSize")]
        function.argtypes = dict(bound_symbols())[function.__name__]
        nbytes = ctypes.c_size_t()
        assert function(1, 9, hardware, ctypes.byref(nbytes), 9, None) == refused


@each_algorithm
def test_kernels_decode_and_never_an_engine_that_hides_damage(
    vendor, standin, nvcomp, algorithm
):
    for library in (vendor, nvcomp):
        assert library.alignments(algorithm).output == 1
    plain = b"elements" * 9
    batch = Batch([ENCODERS[algorithm.name.lower()](plain)], [len(plain)])
    batch.decode(nvcomp, algorithm)
    assert standin.complaints == []
    with mock.patch.object(DecompressOptions, "with_kernels", DecompressOptions):
        batch.decode(nvcomp, algorithm)
    told = ["a backend that may be a decompression engine (0)"]
    assert standin.complaints == ([] if algorithm is Algorithm.ZSTD else told)


@each_algorithm
def test_without_a_driver_the_vendor_library_says_so(vendor, algorithm):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a driver: host tables would be read on the device")
    batch = Batch([b"x"], [10])
    with pytest.raises(DeviceError, match=r"DecompressAsync.*CUDA_ERROR \(1000\)"):
        batch.decode(vendor, algorithm)


# ---- finding it


def test_the_wheel_is_found(vendor):
    load_nvcomp.cache_clear()
    assert load_nvcomp().path == vendor.path


def test_the_wheel_is_found_beside_a_package_that_hides_it(
    vendor, monkeypatch, tmp_path
):
    hiding, holding = tmp_path / "a", tmp_path / "b"
    (hiding / "nvidia").mkdir(parents=True)
    (hiding / "nvidia" / "__init__.py").touch()
    library = holding / "nvidia" / "libnvcomp" / "lib64" / "libnvcomp.so.6"
    library.parent.mkdir(parents=True)
    library.symlink_to(vendor.path)
    monkeypatch.setattr(sys, "path", [str(hiding), str(holding)])
    load_nvcomp.cache_clear()
    assert load_nvcomp().path == str(library)
    load_nvcomp.cache_clear()


def test_without_a_wheel_the_error_says_what_to_install(monkeypatch):
    load_nvcomp.cache_clear()
    monkeypatch.setattr(nvcomp_module, "_wheel_libraries", lambda: iter(()))
    monkeypatch.setattr(nvcomp_module, "_SONAME", "libnvcomp-is-not-here.so.6")
    with pytest.raises(UnsupportedError, match=r"not installed.*gpushard\[cuda13\]"):
        load_nvcomp()
    load_nvcomp.cache_clear()


def test_another_major_version_is_refused(standin):
    standin.set_version(5301)
    with pytest.raises(UnsupportedError, match=r"expected 6, got 5\.3\.1; run: pip"):
        Nvcomp(standin.path)


def test_a_library_without_the_functions_is_refused():
    with pytest.raises(UnsupportedError, match="has no function nvcompGetProperties"):
        Nvcomp("libc.so.6")


def test_a_file_that_is_no_library_is_refused(tmp_path):
    path = tmp_path / "libnvcomp.so.6"
    path.write_bytes(b"no ELF")
    with pytest.raises(UnsupportedError, match="cannot be loaded"):
        Nvcomp(path)


def test_the_binding_imports_nothing_heavy():
    heavy = "{'cupy', 'zarr', 'nvidia.nvcomp', 'cramjam', 'zstandard'}"
    code = f"import gpushard.devices.nvcomp, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parents[1],
    )
    assert done.stdout.strip() == "set()"


def test_statuses_have_names_and_unknown_ones_their_number():
    assert status_name(13) == "BAD_CHECKSUM (13)"
    assert status_name(12345) == "status 12345"


# ---- decoding through the stand-in


@each_algorithm
def test_a_batch_decodes_to_exactly_its_bytes(standin, nvcomp, algorithm):
    plain = payloads()
    streams = [ENCODERS[algorithm.name.lower()](data) for data in plain]
    batch = Batch(streams, [len(data) for data in plain])
    batch.decode(nvcomp, algorithm)
    assert batch.statuses.tolist() == [0] * len(plain)
    assert [batch.decoded(i) for i in range(len(plain))] == plain
    # Nothing behind the capacity is touched.
    assert all(
        not out[len(data) :].any()
        for out, data in zip(batch.outputs, plain, strict=True)
    )
    assert standin.complaints == []


@each_algorithm
def test_damaged_and_too_large_streams_fail_alone(standin, nvcomp, algorithm):
    data = np.random.default_rng(9).integers(0, 9, 4000, dtype=np.uint8).tobytes()
    good = ENCODERS[algorithm.name.lower()](data)
    batch = Batch([good, good[:-1], good], [4000, 4000, 3999])
    batch.decode(nvcomp, algorithm)
    assert batch.statuses[0] == 0
    assert (batch.statuses[1:] != 0).all()
    assert batch.decoded(0) == data
    # Its size alone does not tell that a stream failed, and its output is garbage.
    assert batch.actual.tolist() == [4000, 4000, 3999]
    assert not np.array_equal(batch.outputs[1][:4000], np.frombuffer(data, np.uint8))
    assert standin.complaints == []


def test_scratch_is_scribbled_over_and_missing_scratch_complained_about(
    standin, nvcomp
):
    stream = ENCODERS["zstd"](bytes(100))
    batch = Batch([stream], [100])
    batch.decode(nvcomp, Algorithm.ZSTD)
    assert (batch.temp.view(np.uint8) == 0xC5).sum() == 7236
    batch.decode(nvcomp, Algorithm.ZSTD, lack_nbytes=1)
    assert batch.statuses[0] == NvcompStatus.INTERNAL
    assert standin.complaints == ["too little scratch (7235)"]
    with pytest.raises(DeviceError, match=r"ALIGNMENT \(17\)"):
        batch.decode(nvcomp, Algorithm.ZSTD, temp_offset=4)


def test_a_misaligned_deflate_stream_is_complained_about(standin, nvcomp):
    batch = Batch([ENCODERS["deflate"](bytes(100))], [100], alignment=2)
    batch.decode(nvcomp, Algorithm.DEFLATE)
    assert batch.statuses[0] == NvcompStatus.INTERNAL
    assert standin.complaints == ["a stream is misaligned (0)"]


def test_null_tables_are_refused_and_null_statuses_are_not(standin, nvcomp):
    batch = Batch([ENCODERS["lz4"](bytes(100))], [100])
    tables = replace(batch.tables, actual_nbytes=0)
    with pytest.raises(DeviceError, match="INVALID_VALUE"):
        nvcomp.decompress_async(Algorithm.LZ4, tables, 0, 0, 0)
    tables = replace(batch.tables, statuses=0)
    nvcomp.decompress_async(Algorithm.LZ4, tables, 0, 0, 0)
    assert batch.decoded(0) == bytes(100)
    assert batch.statuses[0] == -1


def test_work_waits_for_its_stream(standin, nvcomp):
    queue = []
    standin.set_enqueue(lambda stream, work: queue.append((stream, work)))
    batch = Batch([ENCODERS["snappy"](b"later")], [5])
    batch.decode(nvcomp, Algorithm.SNAPPY, stream=0xABC0)
    assert batch.statuses[0] == -1
    [(stream, work)] = queue
    assert stream == 0xABC0
    work()
    assert batch.decoded(0) == b"later"


def test_streams_can_be_refused_or_cut_short_on_purpose(standin, nvcomp):
    streams = [ENCODERS["gzip"](data) for data in (b"one", b"two", b"six")]
    standin.intercept = lambda _, data: 13 if data == streams[1] else None
    standin.shorten = lambda _, data: data == streams[2]
    batch = Batch(streams, [3, 3, 3])
    batch.decode(nvcomp, Algorithm.GZIP)
    assert batch.statuses.tolist() == [0, 13, 0]
    assert batch.actual.tolist() == [3, 3, 2]


@pytest.mark.skipif(not in_sanitized_process(), reason="only ASan sees the red zone")
def test_reading_past_an_input_stays_where_it_is_allowed(standin, nvcomp):
    batch = Batch([ENCODERS["lz4"](bytes(100))], [100], slack=32)
    standin.set_overread(32)
    batch.decode(nvcomp, Algorithm.LZ4)
    assert batch.decoded(0) == bytes(100)


# ---- encoding

ENCODERS_BOUND = [a for a in Algorithm if a.max_encodable_nbytes]
each_encoder = pytest.mark.parametrize(
    "algorithm", ENCODERS_BOUND, ids=lambda a: a.name
)


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
