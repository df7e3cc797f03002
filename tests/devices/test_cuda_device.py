"""`CudaDevice` over a stand-in for CuPy: what a GPU's first minute would find wrong.

All other tests of the GPU path run on `EmulatedDevice` in place of this class.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import gpushard
import test_gpu_contact
import test_gpu_loader
import test_gpu_reads
from cuda_cases import CHAINS, KERNELS, SHAPE, forget, opened, stored, two_gpus
from cuda_host import cupy_calls, cupy_standin, kvikio_standin
from gpushard.devices import cuda, find
from gpushard.devices.cuda import CudaDevice
from gpushard.devices.cuda_modules import CudaModules
from gpushard.devices.kernels import load_kernel_sources
from gpushard.devices.nvcomp_abi import Algorithm
from gpushard.devices.placement import RATES
from gpushard.devices.structs import CANARIES, record
from gpushard.errors import CorruptShardError, DeviceError, UnsupportedError
from loader_data import IMAGES, images
from zarr_oracle import assert_same_bits


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    yield from two_gpus(monkeypatch, tmp_path)


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("chain", CHAINS)
def test_arrays_are_read_through_cupy(cupy, tmp_path, chain, ordinal):
    values = stored(tmp_path / "a", chain)
    a = opened(tmp_path / "a", f"cuda:{ordinal}")
    assert a.device == f"cuda:{ordinal}"
    assert_same_bits(a[...].get(), values)
    assert_same_bits(a[30:2:-3, 5].get(), values[30:2:-3, 5])
    assert_same_bits(a.vindex[[3, 1], [2, 39]].get(), values[[3, 1], [2, 39]])
    assert_same_bits(a.read(dtype="f2").get(), values.astype("f2"))
    report = a.explain()
    assert (report.n_decoded_on_device, report.n_refused_inner_chunks) == (20, 0)
    assert cupy.thread.device == 0
    assert cupy.devices[0].standin.complaints == []


@pytest.mark.parametrize("ordinal", [0, 1])
def test_arrays_are_written_through_cupy(cupy, tmp_path, ordinal):
    values = stored(tmp_path / "a")
    value = opened(tmp_path / "a", f"cuda:{ordinal}")[...]
    b = gpushard.create_array(
        tmp_path / "b",
        shape=SHAPE,
        dtype="i4",
        chunks=(8, 10),
        shards=(16, 20),
        compressors=CHAINS["zstd-crc32c"],
        device=f"cuda:{ordinal}",
    )
    b[...] = value
    assert "zstd" in cupy.devices[0].standin.encoded
    assert_same_bits(zarr.open_array(tmp_path / "b")[...], values)


def test_batches_of_a_loader_are_made_through_cupy(cupy):
    loader = gpushard.Loader(images(), batch_size=4, device="cuda:1")
    got = [batch.get() for batch in loader]
    assert_same_bits(np.concatenate(got), IMAGES)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_context_lost_to_a_stream_is_told_with_the_damage(
    cupy, tmp_path, monkeypatch, is_damaged
):
    """As CUDA does it: whatever waits fails for good, and so does a harmless call."""
    stored(tmp_path / "a", "gzip")
    if is_damaged:
        shard = tmp_path / "a/c/0/0"
        data = bytearray(shard.read_bytes())
        offset, nbytes = np.frombuffer(bytes(data[-68:-4]), "<u8")[:2].tolist()
        data[offset + nbytes // 2] ^= 0x55
        shard.write_bytes(data)
    runtime = sys.modules["cupy"].cuda.runtime

    query, ask = runtime.streamQuery, runtime.memGetInfo

    def is_lost():
        return any(kind == "decode" for _, kind, _ in cupy.devices[0].log)

    def ask_lost():
        if is_lost():
            raise runtime.CUDARuntimeError(700)
        return ask()

    monkeypatch.setattr(runtime, "streamQuery", lambda s: [query(s), 700][is_lost()])
    monkeypatch.setattr(runtime, "memGetInfo", ask_lost)
    a = opened(tmp_path / "a")
    kind = CorruptShardError if is_damaged else DeviceError
    with pytest.raises(kind, match="start a new process") as raised:
        a[...]
    error = raised.value
    assert isinstance(error, CorruptShardError) == is_damaged
    if is_damaged:
        assert (error.shard_key, error.inner_chunk) == ("c/0/0", (0, 0))
        error = error.__cause__
    assert "cudaError 700" in str(error)
    with pytest.raises(DeviceError, match=r"failed before.* got cudaError 700"):
        a[...]


def test_a_driver_older_than_nvcomp_is_refused(cupy, monkeypatch):
    major = cuda.load_nvcomp().cuda_major
    number = (major - 1) * 1000 + 90
    runtime = sys.modules["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: number)
    told = rf"newer driver.*CUDA {major}.*got one for CUDA {major - 1}\.9; run: pip"
    with pytest.raises(UnsupportedError, match=told):
        CudaDevice(0)
    assert "newer driver" in find.find_device("auto").why


def test_a_gpu_without_a_compiler_is_refused(cupy):
    """As with CuPy alone, for which NVRTC is an extra."""
    cupy.nvrtc.is_missing = True
    told = r"finds no NVRTC \(Failure finding \"libnvrtc.so\": No such file\); run: pip"
    with pytest.raises(UnsupportedError, match=told):
        CudaDevice(0)
    assert "no NVRTC" in find.find_device("auto").why


def test_kernels_are_compiled_once_for_the_architecture(cupy, tmp_path):
    stored(tmp_path / "a")
    for _ in range(2):  # of two processes
        forget()
        opened(tmp_path / "a")[...]
    names = [name for name, _ in cupy.nvrtc.compiled]
    assert len(names) == len(set(names)) > 3
    assert all("--gpu-architecture=sm_90" in how for _, how in cupy.nvrtc.compiled)
    assert not any(cupy.nvrtc.programs)


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", [no_home, lambda: Path("/" + 300 * "h")])
@pytest.mark.usefixtures("cupy")
def test_kernels_are_compiled_for_a_user_without_a_home(tmp_path, monkeypatch, home):
    """Or with one that cannot be searched, as where a container runs as any user."""
    values = stored(tmp_path / "a")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(home))
    assert_same_bits(opened(tmp_path / "a")[...].get(), values)
    assert CudaDevice(0).rates is RATES


@pytest.mark.parametrize(
    ("device", "known", "compiled"),
    [
        ("92", (75, 80, 86, 89, 90), "sm_90"),
        ("103", (86, 87, 89, 90, 100, 101, 120), "sm_100"),
        ("92", (75, 80, 86, 100, 120), ""),
    ],
    ids=["same major", "NVRTC 12.8", "older"],
)
def test_a_gpu_newer_than_nvrtc_runs_code_of_its_major(
    cupy, monkeypatch, tmp_path, device, known, compiled
):
    """Such as sm_103 with the NVRTC 12.8 that a torch for CUDA 12.8 brings."""
    stored(tmp_path / "a")
    cupy.nvrtc.architectures = known
    monkeypatch.setattr(cupy_standin.Device, "compute_capability", device)
    if not compiled:
        told = r"NVRTC 13\.1 is older than the device.*sm_92, got at most sm_120"
        with pytest.raises(UnsupportedError, match=told):
            CudaDevice(0)
        assert "older than the device" in find.find_device("auto").why
        return
    opened(tmp_path / "a")[...]
    options = [how for _, how in cupy.nvrtc.compiled]
    assert options
    assert all(f"--gpu-architecture={compiled}" in how for how in options)


def test_threads_that_need_a_kernel_at_once_compile_it_once(cupy, monkeypatch):
    device, compile_program = CudaDevice(0), cupy.nvrtc.compileProgram

    def compile_slowly(*arguments):
        time.sleep(0.05)  # without the GIL, as NVRTC
        compile_program(*arguments)

    monkeypatch.setattr(cupy.nvrtc, "compileProgram", compile_slowly)
    with ThreadPoolExecutor(2) as pool:
        first, other = pool.map(device._modules.function, ["gs_fold", "gs_fold"])
    assert first == other
    assert [name for name, _ in cupy.nvrtc.compiled] == ["gate.cu"]


def test_parameters_are_no_more_than_any_driver_takes():
    for kernel in load_kernel_sources():
        assert 0 < sum(KERNELS.parameter_sizes(kernel)) <= 4096  # before CUDA 12.1


def test_what_does_not_compile_is_told(cupy, tmp_path):
    stored(tmp_path / "a")
    cupy.nvrtc.refuses = True
    with pytest.raises(gpushard.DeviceError, match=r"does not compile.*\(1\): error"):
        opened(tmp_path / "a")[...]
    assert not any(cupy.nvrtc.programs)


def test_a_kernel_may_be_the_first_call_of_a_thread(cupy):
    device, failures = CudaDevice(0), []
    memory, stream = device.allocate(4096), device.create_stream()

    def launch():
        at = np.uint64(memory.address)
        try:
            args = (at, at, at, np.uint64(0), at, np.uint32(0), record(CANARIES))
            device.launch("gs_fold", (1, 1), args, stream)
        except gpushard.DeviceError as error:
            failures.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert failures == []
    device.wait(device.record(stream))


def let_go_of(cupy, sizes=(1 << 20, 1 << 14, 1 << 13, 5632, 5632)):
    """Memory in the pool that the default stream has still to write to."""
    given = [cupy.alloc(nbytes) for nbytes in sizes]
    for pointer, nbytes in zip(given, sizes, strict=True):
        cupy.keep_busy(pointer.ptr, nbytes)


@pytest.mark.parametrize("is_named", [False, True], ids=["current", "named"])
def test_memory_that_the_callers_work_still_uses_is_left_alone(
    cupy, tmp_path, is_named
):
    """A pool gives again at once what was let go of, to who asks on that stream."""
    values = stored(tmp_path / "a")
    a = opened(tmp_path / "a")
    stream = cupy.made.Stream(non_blocking=True) if is_named else None
    let_go_of(cupy)
    assert_same_bits(a.read(stream=stream).get(), values)
    let_go_of(cupy)
    b = gpushard.create_array(
        tmp_path / "b",
        shape=SHAPE,
        dtype="i4",
        chunks=(8, 10),
        compressors=ZstdCodec(),
        device="cuda",
    )
    b[...] = a.read(stream=stream)
    assert_same_bits(zarr.open_array(tmp_path / "b")[...], values)
    let_go_of(cupy)
    loader = gpushard.Loader(images(), batch_size=4, device="cuda")
    assert_same_bits(np.concatenate([batch.get() for batch in loader]), IMAGES)


def test_memory_may_be_ready_on_the_stream_only_that_it_was_asked_for_on(
    cupy, tmp_path
):
    values = stored(tmp_path / "a")
    a, cupy.is_stream_ordered = opened(tmp_path / "a", "cuda:1"), True
    for _ in range(5):  # orders of streams
        assert_same_bits(a[...].get(), values)


def test_results_are_of_data_types_that_cupy_has(cupy, tmp_path):
    values = stored(tmp_path / "a")
    a = opened(tmp_path / "a")
    result = a.read(dtype=ml_dtypes.bfloat16)
    assert result.dtype == ml_dtypes.bfloat16
    assert_same_bits(result.get(), values.astype(ml_dtypes.bfloat16))
    days = np.arange(6).astype("M8[D]")
    zarr.create_array(tmp_path / "t", data=days, chunks=(2,), zarr_format=2)
    with pytest.raises(gpushard.UnsupportedError, match="CuPy has no arrays of"):
        opened(tmp_path / "t")[...]


@pytest.mark.parametrize("chain", ["none", "zstd-crc32c", "blosc-lz4", "blosclz"])
def test_the_tests_for_a_gpu_pass_here(cupy, tmp_path, chain):
    """Nobody sees them fail, or lack something, before there is a GPU."""
    device = CudaDevice(0)
    test_gpu_reads.test_every_chain_is_decoded_on_the_device(
        tmp_path / "a", device, chain, (8, 10)
    )


def test_the_other_tests_for_a_gpu_pass_here(cupy, tmp_path):
    device = CudaDevice(0)
    name = next(iter(test_gpu_reads.MANIFEST["valid"]))
    test_gpu_reads.test_interop_samples_are_read_as_on_the_host(device, name)
    test_gpu_reads.test_values_are_cast_on_the_way(tmp_path / "c", device, "f2")
    test_gpu_reads.test_what_is_handed_out_and_taken_are_cupys_arrays(tmp_path, device)
    test_gpu_reads.test_any_array_is_read_as_on_the_host(device)
    test_gpu_reads.test_what_no_kernel_scatters_is_read_by_the_host(tmp_path, device)
    test_gpu_loader.test_batches_are_those_of_the_host("rows", 1 / 255, "device")


def test_the_first_contact_passes_here(cupy, monkeypatch):
    device, contact = CudaDevice(0), test_gpu_contact
    stream = device.create_stream()
    contact.test_a_device_says_what_it_is(device)
    contact.test_bytes_go_to_the_device_and_come_back(device, stream)
    contact.test_memory_that_there_is_not_is_refused_and_the_device_goes_on(device)
    contact.test_streams_wait_for_events(device, stream)
    contact.test_a_kernel_is_compiled_and_fits_the_device(device, "gs_fold")
    contact.test_a_kernel_runs(device, stream)
    contact.test_a_kernel_runs_in_a_thread_that_did_nothing_before(device, stream)
    for algorithm in Algorithm:
        contact.test_the_vendors_library_decodes(device, algorithm)


def test_the_rest_of_the_first_contact_passes_here(cupy, tmp_path, monkeypatch):
    device, contact = CudaDevice(0), test_gpu_contact
    for chain in contact.ENCODED:
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numcodecs' names are in no specification
            contact.test_the_vendors_library_encodes_what_others_decode(
                tmp_path / chain, device, chain, patch
            )
    for chain in contact.CHAINS:
        contact.test_an_array_is_read(tmp_path / f"read {chain}", device, chain)
    read = contact.stored(tmp_path, device)
    for handle in (0, 1, 2):
        contact.test_the_default_streams_are_taken(read, device, handle)
    kvikio_standin.install(monkeypatch, cupy.devices[0])
    contact.test_kvikio_reads_a_file_into_device_memory(tmp_path, device)


@pytest.fixture
def real_cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed here")


def parameters(function):
    """Names of parameters; of what Cython compiled they stand in its text."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        text = re.match(r"[\w.]+\((.*?)\)", function.__doc__, re.DOTALL)[1]
        names = [part.split("=")[0].split()[-1] for part in text.split(",") if part]
    return [name for name in names if name != "self"]


def test_the_stand_in_has_cupys_signatures(real_cupy):
    real, standin = real_cupy.cuda, cupy_standin
    pairs = [
        (real.Event.__init__, standin.Event.__init__),
        (real.Event.record, standin.Event.record),
        (real.Stream.__init__, standin.Stream.__init__),
        (real.function.Module.load, standin.Module.load),
        (real.alloc, standin.Cupy.alloc),
        (real.PinnedMemory.__init__, standin.PinnedMemory.__init__),
        (real.get_current_stream, standin.Cupy.get_current_stream),
        (real_cupy.empty, standin.Cupy.empty),
    ]
    for module, calls in (
        (real.runtime, cupy_calls.Runtime),
        (real.driver, cupy_calls.Driver),
        (real.nvrtc, cupy_calls.Nvrtc),
    ):
        names = [name for name in vars(calls) if name[0].islower()]
        functions = [name for name in names if inspect.isroutine(vars(calls)[name])]
        pairs += [(getattr(module, name), vars(calls)[name]) for name in functions]
    for function, other in pairs:
        assert parameters(function) == parameters(other), other
    assert len(pairs) > 20


def test_cupy_compiles_the_kernels(real_cupy, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        real_cupy.cuda.nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(f"NVRTC cannot be used here: {error}")
    modules = CudaModules(real_cupy.cuda, (9, 0), "cuda:0")
    source = load_kernel_sources()["gs_fold"]
    assert source.headers
    assert modules.cubin(source)[:4] == b"\x7fELF"
