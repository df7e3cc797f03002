"""Damage that nothing finds before the decoder of a CUDA device: `pytest -m gpu`.

nvCOMP promises nothing for such streams, and one of them may end its process' work on
the GPU. So each case has a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import array_strategies as arrays
from flipped_bytes import damage_inner_chunks
from overrunning_streams import CHAINS as OVERRUNS
from overrunning_streams import FILL, NBYTES, overrunning_array
from real_gpu import cuda_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

CHAINS = {
    "crc32c-zstd": [Crc32cCodec(), ZstdCodec()],
    "zstd": [ZstdCodec()],
    "gzip": [GzipCodec()],
    "lz4": [arrays.codec("numcodecs.lz4", acceleration=1)],
    "blosc-lz4": [BloscCodec(cname="lz4", shuffle="shuffle")],
    "blosc-zstd": [BloscCodec(cname="zstd", shuffle="shuffle")],
}
SHOWN = ("crc32c-zstd", "gzip")
"""Chains with a checksum of the decoded bytes, which shows any damage."""

SHAPE, CHUNK = (256, 256), 64
VICTIM = (0, 1)
HANGS_S, HAS_S = 25, 40
"""Seconds after which a process tells where its threads are and ends; then is killed.

It takes one to four, most of it for the context.
"""

# Tells what came out: the result is in a file, or what was raised is printed.
READS = """
import faulthandler, json, sys
faulthandler.dump_traceback_later(HANGS_S, exit=True)
import numpy as np
import gpushard

place, result = sys.argv[1:]
options = gpushard.Options(placement="device", device_patience_s=5)
a = gpushard.open_array(place, device="cuda:0", options=options)
try:
    found = READ
except gpushard.GpushardError as error:
    told = {"error": type(error).__name__, "said": str(error)}
    told["inner_chunk"] = error.inner_chunk
    told["notes"] = getattr(error, "__notes__", [])
else:
    np.save(result, found)
    told = {}
print(json.dumps(told), flush=True)
"""
READ = "a[...].get()"
# A kernel that never ends takes the place of the decoder's. It was run once before with
# a flag that ends it: while it runs, the driver loads nothing. If `is_first`, the read
# has all its own kernels to load, and memory to pin.
STUCK = """
import faulthandler, json, sys, time
faulthandler.dump_traceback_later(HANGS_S, exit=True)
import gpushard

place, is_first = sys.argv[1], sys.argv[2] == "True"
options = gpushard.Options(placement="device", device_patience_s=PATIENCE_S)
SPINS
if not is_first:
    gpushard.open_array(place + "-intact", device="cuda:0", options=options)[...]
a = gpushard.open_array(place, device="cuda:0", options=options)
begin()
told = {}
try:
    a[...]
except gpushard.GpushardError as error:
    cause = error.__cause__ or error
    told = {"error": type(error).__name__, "said": str(error), "cause": str(cause)}
    told["inner_chunk"] = error.inner_chunk
told["at"] = time.time()
print(json.dumps(told), flush=True)
sys.exit(7)
"""
SPINS = """
import ctypes, cupy
from gpushard.devices.nvcomp import Nvcomp

code = 'extern "C" __global__ void spin(const volatile int* ends) { while (!*ends) {} }'
kernel = cupy.RawKernel(code, "spin")
never, at_once = cupy.zeros(1, "int32"), cupy.ones(1, "int32")
kernel((1,), (1,), (at_once,))
cupy.cuda.runtime.deviceSynchronize()

def spin(self, algorithm, tables, temp, temp_nbytes, stream):
    cupy.cuda.runtime.setDevice(0)
    address = ctypes.c_void_p(never.data.ptr)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    cupy.cuda.driver.launchKernel(
        kernel.kernel.ptr, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(parameters), 0
    )

def begin():
    Nvcomp.decompress_async = spin
"""
PATIENCE_S, ENDS_S = 2, 20
LOAD = """np.concatenate(
        [b.get() for b in gpushard.Loader(a, batch_size=64, on_error="skip")]
    )"""


@pytest.fixture(scope="module", autouse=True)
def _needs_a_gpu():
    cuda_device()


def damaged(place, chain, part):
    """Array with one byte of an inner chunk changed, and what it had before.

    `part` says where, in thousandths of the encoded bytes.
    """
    made = zarr.create_array(
        place,
        shape=SHAPE,
        chunks=(CHUNK, CHUNK),
        shards=(2 * CHUNK, 2 * CHUNK),
        dtype="i4",
        compressors=CHAINS[chain],
    )
    values = np.random.default_rng(5).integers(0, 50, SHAPE).astype("i4")
    made[...] = values
    damage_inner_chunks(place / "c/0/0", [1], part)
    return values


def ended(command, out, err):
    """A process that has ended, or was killed; what it said is in two files."""
    with out.open("w") as told, err.open("w") as trouble:
        child = subprocess.Popen(command, stdout=told, stderr=trouble)
    try:
        child.wait(HAS_S)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: it may be held up in the driver
    return child


def outcome(place, result, read=READ):
    """What another process was told of reading the array."""
    script = READS.replace("READ", read).replace("HANGS_S", str(HANGS_S))
    out, err = result.with_suffix(".out"), result.with_suffix(".err")
    command = [sys.executable, "-c", script, str(place), str(result)]
    child = ended(command, out, err)
    # Seen with -rA, or if the test fails. CuPy complains of a lost device at the end.
    said = err.read_text()
    sys.stdout.write(out.read_text() + said[:6000] + said[6000:][-3000:])
    assert child.returncode == 0
    return json.loads(out.read_text().splitlines()[-1])


@pytest.mark.parametrize("part", [20, 500, 990])
@pytest.mark.parametrize("chain", CHAINS)
def test_damage_before_the_decoder_is_named_and_changes_nothing_else(
    tmp_path, chain, part
):
    values = damaged(tmp_path / "a", chain, part)
    result = tmp_path / "result.npy"
    told = outcome(tmp_path / "a", result)
    if told:
        assert told["error"] in ("CorruptShardError", "ChecksumError")
        assert tuple(told["inner_chunk"]) == VICTIM
        return
    # Bytes that decode to others are not seen without a checksum.
    assert chain not in SHOWN
    found = np.load(result)
    lost = (slice(0, CHUNK), slice(CHUNK, 2 * CHUNK))
    found[lost] = values[lost]
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("n_behind", [64, 3 * NBYTES, 500_000])
@pytest.mark.parametrize("chain", OVERRUNS)
def test_a_stream_that_decodes_to_more_changes_nothing_else(tmp_path, chain, n_behind):
    objects, values = overrunning_array(chain, [2], n_behind)
    for name, content in objects.items():
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_bytes(content)
    result = tmp_path / "result.npy"
    told = outcome(tmp_path / "a", result, 'a.read(errors="fill").get()')
    if told:  # there is no device to go on with
        assert "start a new process" in told["said"]
        assert tuple(told["inner_chunk"]) == (2, 0)
        return
    values[2] = FILL
    np.testing.assert_array_equal(np.load(result), values)


@pytest.mark.parametrize("part", [20, 500, 990])
def test_a_loader_skips_damaged_samples_or_names_them(tmp_path, part):
    values = damaged(tmp_path / "a", "crc32c-zstd", part)
    result = tmp_path / "result.npy"
    told = outcome(tmp_path / "a", result, LOAD)
    if told:  # there is no device to go on with
        assert told["error"] in ("CorruptShardError", "ChecksumError")
        assert "start a new process" in told["said"]
        assert "samples 0, 1, 2, 3" in told["notes"][0]
        return
    np.testing.assert_array_equal(np.load(result), values[CHUNK:])


def is_told(text):
    """Whether a device was given up, says who did it or another thread."""
    return re.search(f"not ended (for|after) {PATIENCE_S} seconds", text) is not None


def damaged_beside_intact(place):
    """An array with a damaged inner chunk, and another one without."""
    damaged(place, "gzip", 500)
    intact = place.with_name(f"{place.name}-intact")
    shutil.copytree(place, intact)
    damage_inner_chunks(intact / "c/0/0", [1], 500)  # the same bits again


def stuck_outcome(place, *, is_first, spins=SPINS):
    """What a process was told that read while a kernel never ended; how it ended.

    The seconds from then on to its end, and its exit status.
    """
    script = STUCK.replace("SPINS", spins).replace("HANGS_S", str(HAS_S - 5))
    script = script.replace("PATIENCE_S", str(PATIENCE_S))
    command = [sys.executable, "-c", script, str(place), str(is_first)]
    out, err = place.with_suffix(".out"), place.with_suffix(".err")
    child = ended(command, out, err)
    end_s = time.time()
    sys.stdout.write(out.read_text() + err.read_text()[-9000:])
    told = json.loads(out.read_text().splitlines()[-1])
    return told, end_s - told["at"], child.returncode


@pytest.mark.parametrize("is_first", [False, True])
def test_a_kernel_that_never_ends_ends_the_read_and_not_the_process(tmp_path, is_first):
    damaged_beside_intact(tmp_path / "a")
    told, ends_s, status = stuck_outcome(tmp_path / "a", is_first=is_first)
    assert is_told(told["cause"])
    assert told["error"] in ("CorruptShardError", "ChecksumError")
    assert "start a new process" in told["said"]
    assert tuple(told["inner_chunk"]) == VICTIM
    assert ends_s < ENDS_S
    assert status == 7
