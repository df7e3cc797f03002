"""First contact with a CUDA device: `pytest -m gpu`, and this file before the others.

Each test takes one step beyond those before it, so the first one that fails says where
the code and a real GPU disagree: `pytest -m gpu -x tests/devices/test_gpu_contact.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from benchmarks.gpu.gpu import fetched
from benchmarks.gpu.streams import ENCODERS, Batch, uploaded
from gpushard.codecs.crc32c import with_checksum
from gpushard.device_reading.payload.kvikio_file import (
    FileRange,
    KvikioFiles,
    kvikio_facts,
)
from gpushard.devices.base import RowCopy
from gpushard.devices.compressing import BatchCompressor
from gpushard.devices.kernels import load_kernel_sources
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.errors import DeviceError, DeviceMemoryError
from gpushard.fused.choice import relay_loops
from gpushard.threads.stop_flag import StopFlag, call_for
from real_gpu import cuda_device
from zarr_oracle import assert_same_bits

pytestmark = pytest.mark.gpu

PLAIN = np.round(np.random.default_rng(7).normal(0, 9, 70_001)).astype("i1").tobytes()
MAX_THREADS, STATIC_SHARED = 0, 1  # CUfunction_attribute
FOR_ALL_THREADS = 0  # cudaStreamCaptureModeGlobal
SHAPE = (70, 50)


@pytest.fixture(scope="module")
def device():
    return cuda_device()


@pytest.fixture
def stream(device):
    found = device.create_stream()
    yield found
    device.wait_for(found)
    device.release_stream(found)


def test_a_device_says_what_it_is(device):
    assert device.label == "cuda:0"
    assert ", nvCOMP 6." in device.model
    assert device.free_nbytes() > 0
    assert device.rates
    device.check()


def test_bytes_go_to_the_device_and_come_back(device, stream):
    data = np.frombuffer(PLAIN, np.uint8)
    first = uploaded(device, data, stream)
    other = device.allocate(2 * len(data))
    assert first.address % 256 == other.address % 256 == 0
    device.copy(other.address + 3, first.address, len(data), stream)
    rows = RowCopy(other.address + 3 + 7, 100, first.address, 50, 40, 20)
    device.copy_rows(rows, stream)
    device.wait_for(stream)
    found = fetched(device, other.address + 3, len(data))
    wanted = data.copy()
    for row in range(20):
        wanted[7 + 100 * row : 47 + 100 * row] = data[50 * row : 50 * row + 40]
    assert found.tobytes() == wanted.tobytes()


def test_memory_that_there_is_not_is_refused_and_the_device_goes_on(device):
    with pytest.raises(DeviceMemoryError):
        device.allocate(1 << 50)
    device.check()
    assert device.allocate(1).address


def test_streams_wait_for_events(device, stream):
    host = device.allocate_pinned(1 << 20)
    host[:] = 5
    memory, other = device.allocate(len(host)), device.create_stream()
    device.upload(memory.address, host, stream)
    device.await_event(other, device.record(stream))
    back = device.allocate_pinned(len(host))
    device.download(back, memory.address, other)
    done = device.record(other)
    device.wait(done)
    assert (back == 5).all()
    device.release_stream(other)


@pytest.mark.parametrize("kernel", load_kernel_sources())
def test_a_kernel_is_compiled_and_fits_the_device(device, kernel):
    with device._current():
        function = device._modules.function(kernel)
        ask = device._cupy.cuda.driver.funcGetAttribute
        threads = load_kernel_sources()[kernel].threads[kernel]
        # Registers and shared memory of so many threads are in a multiprocessor.
        assert threads <= ask(MAX_THREADS, function)
        assert ask(STATIC_SHARED, function) <= 48 << 10


def verify(device, stream, data):
    """Size and status that one launch of a kernel gives a row."""
    source = uploaded(device, np.frombuffer(data, np.uint8), stream)
    row = np.array([source.address, len(data), 0], np.uint64).view(np.uint8)
    tables = uploaded(device, row, stream)
    at = [np.uint64(tables.address + 8 * k) for k in range(3)]
    device.launch("gs_crc32c_verify", (1, 1), [*at, np.uint32(1)], stream)
    device.wait_for(stream)
    size, status = fetched(device, tables.address + 8, 16).view(np.uint64).tolist()
    return size, status


def test_a_kernel_runs(device, stream):
    sealed = with_checksum(PLAIN)
    assert verify(device, stream, sealed) == (len(PLAIN), 0)
    damaged = bytes([sealed[0] ^ 1]) + sealed[1:]
    assert verify(device, stream, damaged) == (len(sealed), 1)


def test_a_kernel_runs_in_a_thread_that_did_nothing_before(device, stream):
    found = []
    sealed = with_checksum(PLAIN)
    thread = threading.Thread(
        target=lambda: found.append(verify(device, stream, sealed))
    )
    thread.start()
    thread.join()
    assert found == [(len(PLAIN), 0)]


@pytest.mark.parametrize("algorithm", Algorithm, ids=lambda each: each.value)
def test_the_vendors_library_decodes(device, algorithm):
    plain = [PLAIN, PLAIN[:1], PLAIN[:4096]]
    encoded = [ENCODERS[algorithm](data) for data in plain]
    batch = Batch.lay(device, algorithm, encoded, [len(data) for data in plain])
    assert batch.results() == [("SUCCESS (0)", len(data), data) for data in plain]


ENCODED = {
    "zstd": ZstdCodec(),
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip": {"name": "gzip", "configuration": {"level": 1}},
    "lz4": {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}},
    "zlib": {"name": "numcodecs.zlib", "configuration": {"level": 1}},
}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
@pytest.mark.parametrize("chain", ENCODED)
def test_the_vendors_library_encodes_what_others_decode(
    tmp_path, device, chain, monkeypatch
):
    done, compress = [], BatchCompressor.compress

    def noted(*arguments):
        encoded = compress(*arguments)
        done.extend(one.stream is not None for one in encoded)
        return encoded

    monkeypatch.setattr(BatchCompressor, "compress", noted)
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    made = gpushard.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype="i4",
        chunks=(32, 32),
        compressors=ENCODED[chain],
        device=device.label,
    )
    made[...] = on_device(device, values)
    assert done == [True] * 4
    assert_same_bits(zarr.open_array(tmp_path / "a")[...], values)


def on_device(device, values):
    """CuPy's array of `values`."""
    array, stream = device.empty(values.shape, values.dtype), device.create_stream()
    host = device.allocate_pinned(values.nbytes)[: values.nbytes]
    host[:] = values.reshape(-1).view(np.uint8)
    address = array.__cuda_array_interface__["data"][0]
    device.upload(address, host, stream)
    device.wait_for(stream)
    device.release_stream(stream)
    return array


@pytest.fixture
def a(tmp_path, device):
    return stored(tmp_path, device)


# What a read may ask of a device: copies only; a decoder; counts of streams, which a
# kernel writes to the host's memory; streams moved to multiples of 4.
CHAINS = {
    "none": None,
    "zstd-crc32c": [ZstdCodec(), Crc32cCodec()],
    "gzip": [GzipCodec()],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle")],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="bitshuffle")],
}


def stored(tmp_path, device, chain="zstd-crc32c"):
    """An array, read on the device whatever it costs, and its values."""
    values = np.random.default_rng(5).integers(0, 50, SHAPE).astype("i4")
    made = zarr.create_array(
        tmp_path / "a",
        shape=SHAPE,
        dtype="i4",
        chunks=(10, 25),
        shards=(40, 50),
        compressors=CHAINS[chain],
    )
    made[...] = values
    options = gpushard.Options(placement="device")
    return gpushard.open_array(
        tmp_path / "a", device=device.label, options=options
    ), values


@pytest.mark.parametrize("chain", CHAINS)
def test_an_array_is_read(tmp_path, device, chain):
    a, values = stored(tmp_path, device, chain)
    assert_same_bits(a[...].get(), values)
    assert_same_bits(a[60:2:-3, ::7].get(), values[60:2:-3, ::7])
    report = a.explain()
    assert report.n_decoded_on_device
    assert report.n_refused_inner_chunks == 0


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_default_streams_are_taken(a, device, handle):
    """CUDA's own: the default one, by name, and that of each thread."""
    a, values = a
    out = device.empty(SHAPE, np.dtype("i4"))
    a.read(out=out, stream=handle)
    assert_same_bits(out.get(), values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_tensors_are_written_on_the_stream_that_torch_uses(a, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    a, values = a
    with torch.cuda.stream(torch.cuda.Stream()):
        out = torch.full(SHAPE, -1, dtype=getattr(torch, dtype), device="cuda")
        for _ in range(50):
            out.fill_(-1)
        assert a.read(out=out) is out
        assert torch.equal(out.cpu(), torch.from_numpy(values).to(out.dtype))
    assert_same_bits(torch.from_dlpack(a[...]).cpu().numpy(), values)


def test_tensors_of_float8_are_written_or_refused(a, device):
    """The interface that tells of their memory has no name for their type."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    a, values = a
    out = torch.zeros(SHAPE, dtype=torch.float8_e5m2, device="cuda")
    try:
        a.read(out=out)
    except gpushard.GpushardError:
        return  # CuPy does not take it
    assert torch.equal(
        out.cpu().to(torch.float32),
        torch.from_numpy(values).to(out.dtype).to(torch.float32),
    )


def test_tensors_are_refused_until_torch_has_conjugated_them(tmp_path, device):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    values = np.full(SHAPE, 1 + 2j, "c8")
    how = {"shape": SHAPE, "dtype": "c8", "chunks": (10, 25)}
    made = gpushard.create_array(tmp_path, device=device.label, **how)
    late = torch.from_numpy(values).to("cuda").conj()
    with pytest.raises(gpushard.SelectionError, match="not conjugated or negated yet"):
        made[...] = late
    with pytest.raises(gpushard.SelectionError, match="not conjugated or negated yet"):
        made.read(out=late)
    made[...] = late.resolve_conj()
    assert_same_bits(zarr.open_array(tmp_path)[...], values.conj())


def test_threads_of_ours_read_while_a_graph_is_captured(tmp_path, device):
    """In the mode that forbids all threads what no graph can record."""
    values = np.random.default_rng(5).integers(0, 50, (1024, 1024)).astype("i4")
    how = {"chunks": (64, 64), "shards": values.shape, "compressors": None}
    made = zarr.create_array(tmp_path, shape=values.shape, dtype="i4", **how)
    made[...] = values
    options = gpushard.Options(placement="device", compile_nbytes=0)
    relay_loops(options, values.nbytes)
    a = gpushard.open_array(tmp_path, device=device.label, options=options)
    found, memory = [], device.allocate(16)
    thread = threading.Thread(
        target=lambda: found.append(call_for(StopFlag(), lambda: a[:, ::-1]))
    )
    with device._current(), device._cupy.cuda.Stream(non_blocking=True) as captured:
        captured.begin_capture(FOR_ALL_THREADS)
        device._runtime.memsetAsync(memory.address, 0, 16, captured.ptr)
        thread.start()
        thread.join()
        captured.end_capture()
    assert_same_bits(found.pop().get(), values[:, ::-1])


def test_a_read_that_a_graph_shall_record_is_refused_and_breaks_nothing(a, device):
    a, values = a
    assert_same_bits(a[...].get(), values)
    with device._current(), device._cupy.cuda.Stream(non_blocking=True) as captured:
        captured.begin_capture(FOR_ALL_THREADS)
        with pytest.raises(DeviceError, match="before a CUDA graph is captured"):
            a[...]
        with suppress(device._runtime.CUDARuntimeError):  # it is lost
            captured.end_capture()
    assert_same_bits(a[...].get(), values)


def test_kvikio_reads_a_file_into_device_memory(tmp_path, device):
    facts = kvikio_facts()
    if not facts:
        pytest.skip("kvikio is not installed here, or cannot be imported")
    import kvikio

    if facts["is_gds_available"] is not True:  # else cuFile tries what is not there
        kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
    (tmp_path / "file").write_bytes(PLAIN)
    memory = device.allocate(2 * 65536)
    page = -(-memory.address // 4096) * 4096
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        files = KvikioFiles(kvikio)
        file = files.file_of(fd, "a version", 1)
        files.read([FileRange(file, 4096, 65536 - 4096, page)])
    finally:
        os.close(fd)
    found = fetched(device, page, 65536 - 4096)
    assert found.tobytes() == PLAIN[4096:65536], facts


ENDING = """
import sys, gpushard
options = gpushard.Options(placement="device")
a = gpushard.open_array(sys.argv[1], device="cuda", options=options)
result, left = a[...], iter(gpushard.Loader(a, batch_size=4, device="cuda"))
next(left)
"""


def test_a_process_ends_in_peace_while_a_loader_reads_ahead(tmp_path, device):
    stored(tmp_path, device)
    command = [sys.executable, "-c", ENDING, str(tmp_path / "a")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# Last: the driver has threads, and a child that has none of them might hang.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_is_told_to_begin_anew(device):
    there, here = os.pipe()
    if not (child := os.fork()):
        signal.alarm(20)
        try:
            device.allocate(256)
        except DeviceError as error:
            os.write(here, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(here)
    with os.fdopen(there, "rb") as told:
        assert b"start a new process" in told.read()
