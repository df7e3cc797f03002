"""A device that damage breaks: the host names the damage, and asks nothing of it.

On the emulated device, which breaks in the work that a test chooses.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.reads import read_on_device
from damaged_arrays import emulated
from gpushard import CorruptShardError, DeviceError, Loader, Options, StoreError
from gpushard.device_reading import suspects
from gpushard.loader import reading
from gpushard.options import MIB
from gpushard.selecting.selection import whole
from memory_device import grown

CHAINS = {
    "crc32c-zstd": [Crc32cCodec(), ZstdCodec()],
    "gzip": [GzipCodec()],
    "blosc-zlib": [BloscCodec(cname="zlib", shuffle="bitshuffle", blocksize=64)],
}
chains = pytest.mark.parametrize("chain", CHAINS)
LOST = "start a new process"


class Fragile(EmulatedDevice):
    """Breaks in the work of the decoder with number `victim`."""

    victim = 0
    n_decodes = 0

    def queue(self, stream, kind, what, run):
        if kind == "decode":
            run = self._breaking(run, self.n_decodes)
            self.n_decodes += 1
        super().queue(stream, kind, what, run)

    def _breaking(self, run, number):
        def decode():
            run()
            if number == self.victim:
                self.is_broken = True

        return decode


def fragile(victim=0, **knobs):
    device = Fragile(*emulated(), **knobs)
    device.victim = victim
    return device


@pytest.fixture
def stored(tmp_path, chain):
    """Array of two rows of shards, in each of which the first inner chunks are stored.

    8 inner chunks are stored, and 8 are missing.
    """
    made = zarr.create_array(
        tmp_path,
        shape=(32, 16),
        chunks=(4, 8),
        shards=(16, 16),
        dtype="i4",
        compressors=CHAINS[chain],
    )
    values = np.random.default_rng(5).integers(0, 50, (32, 16)).astype("i4")
    made[:8], made[16:24] = values[:8], values[16:24]
    return gpushard.open_array(tmp_path, device="cpu")


def damage(a, shard, number):
    """Change a byte in the middle of an inner chunk of a shard."""
    path = a.source.store.url.removeprefix("file://") + f"/{a.source.key((shard, 0))}"
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        entries = np.frombuffer(bytes(data[-132:-4]), "<u8").reshape(-1, 2)
        offset, nbytes = map(int, entries[number])
        data[offset + nbytes // 2] ^= 0x55
        file.seek(0)
        file.write(data)


@chains
def test_the_host_names_the_damage_that_a_device_broke_of(stored):
    damage(stored, 0, 2)
    with pytest.raises(CorruptShardError) as host:
        stored[...]
    with pytest.raises(CorruptShardError, match=LOST) as there:
        read_on_device(stored, [whole(stored.shape)], fragile())
    assert there.value.what == host.value.what
    assert there.value.shard_key == host.value.shard_key == "c/0/0"
    assert there.value.inner_chunk == host.value.inner_chunk == (1, 0)
    assert there.value.store_url == stored.source.store.url
    hints = filter(None, [host.value.hint, "the device is lost with it: " + LOST])
    assert there.value.hint == "; ".join(hints)
    assert isinstance(there.value.__cause__, DeviceError)


@chains
def test_a_device_that_broke_without_damage_is_told_as_such(stored):
    device = fragile()
    with pytest.raises(DeviceError, match="found no damage"):
        read_on_device(stored, [whole(stored.shape)], device)
    with pytest.raises(DeviceError, match="broken") as again:
        read_on_device(stored, [whole(stored.shape)], device)
    assert "damage" not in str(again.value)


@chains
def test_nothing_is_in_hand_after_a_read(stored):
    _, job = read_on_device(stored, [whole(stored.shape)], fragile(-1))
    assert job.tally.counts["n_decoded_on_device"] == 8
    assert [*job.sink.under_way()] == []


@pytest.mark.parametrize("chain", ["gzip"])
def test_of_a_device_that_still_works_nothing_is_said(stored):
    _, job = read_on_device(stored, [whole(stored.shape)], fragile(-1))
    error = DeviceError("a call failed")
    suspects.blame(error, [job])
    assert error.hint is None


@pytest.mark.parametrize("chain", ["gzip"])
@pytest.mark.parametrize("seed", range(4))
def test_only_what_was_in_hand_is_looked_at(stored, seed):
    """Batches of one inner chunk, of which the last one is damaged."""
    damage(stored, 1, 3)
    with pytest.raises(DeviceError, match="found no damage"):
        read_on_device(stored, [whole(stored.shape)], fragile(0, seed=seed), max_rows=1)
    with pytest.raises(CorruptShardError, match=LOST) as last:
        read_on_device(stored, [whole(stored.shape)], fragile(7, seed=seed), max_rows=1)
    assert last.value.inner_chunk == (5, 1)


@pytest.mark.parametrize("chain", ["gzip"])
def test_the_device_is_asked_nothing_meanwhile(stored, monkeypatch):
    device = fragile()

    def refuse(*_):
        raise AssertionError("a lost device was asked for something")

    decode = suspects.decode_row

    def decode_there(*given):
        for name in ("allocate", "allocate_pinned", "queue", "record", "create_stream"):
            monkeypatch.setattr(device, name, refuse)
        looked.append(given)
        return decode(*given)

    looked = []
    monkeypatch.setattr(suspects, "decode_row", decode_there)
    with pytest.raises(DeviceError, match="found no damage"):
        read_on_device(stored, [whole(stored.shape)], device)
    assert len(looked) in (4, 8)


@pytest.mark.parametrize("chain", ["gzip"])
def test_a_store_that_fails_meanwhile_leaves_the_devices_error(stored, monkeypatch):
    def fail(*_):
        raise StoreError("the store is gone")

    monkeypatch.setattr(suspects, "decode_row", fail)
    with pytest.raises(DeviceError, match="could not look for damage"):
        read_on_device(stored, [whole(stored.shape)], fragile())


@pytest.mark.parametrize("chain", ["gzip"])
@pytest.mark.parametrize("errors", ["raise", "fill", print])
def test_no_read_goes_on_over_damage_without_a_device(stored, errors):
    damage(stored, 0, 2)
    options = Options(placement="device")
    place = stored.source.store.url
    a = gpushard.open_array(place, device=fragile(), options=options)
    with pytest.raises(CorruptShardError, match=LOST) as raised:
        a.read(errors=errors)
    assert raised.value.inner_chunk == (1, 0)


@pytest.mark.parametrize("chain", ["gzip"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_loader_names_the_samples_in_any_read_that_was_under_way(
    stored, monkeypatch, on_error, victim
):
    """A load has the rows of one shard; while the first is waited for, so is the other.

    The device may break in the one while the damage is in the other.
    """
    monkeypatch.setattr(reading, "LOAD_NBYTES", 1024)
    damage(stored, 1, 2)
    options = Options(placement="device")
    place = stored.source.store.url
    a = gpushard.open_array(place, device=fragile(victim), options=options)
    with (
        Loader(a, batch_size=16, on_error=on_error) as loader,
        pytest.raises(CorruptShardError, match=LOST) as raised,
    ):
        list(loader)
    assert raised.value.inner_chunk == (5, 0)
    assert "samples 20, 21, 22, 23" in raised.value.__notes__[0]
    assert isinstance(raised.value.__cause__, DeviceError)


@pytest.mark.parametrize("chain", ["gzip"])
def test_a_loader_names_the_damage_in_a_read_that_it_tries_again(stored, monkeypatch):
    damage(stored, 0, 2)
    options = Options(placement="device")
    place = stored.source.store.url
    a = gpushard.open_array(place, device=fragile(), options=options)
    failures, read = [StoreError("the store is slow")], a.source.store.read

    def failing_once(requests):
        if failures and requests[0].is_indexed:
            raise failures.pop()
        return read(requests)

    monkeypatch.setattr(reading, "_PAUSES", (0,))
    monkeypatch.setattr(a.source.store, "read", failing_once)
    with (
        Loader(a, batch_size=16) as loader,
        pytest.raises(CorruptShardError, match=LOST) as raised,
    ):
        list(loader)
    assert raised.value.inner_chunk == (1, 0)
    assert "samples 4, 5, 6, 7" in raised.value.__notes__[0]


@pytest.mark.parametrize("chain", ["gzip"])
def test_a_loader_names_the_damage_in_what_it_tries_singly(stored, monkeypatch):
    """Two inner chunks are damaged: one is left out, the other breaks the device."""
    damage(stored, 0, 0)
    damage(stored, 0, 2)
    options = Options(placement="device")
    device = fragile(-1)
    a = gpushard.open_array(stored.source.store.url, device=device, options=options)
    readable = reading.Reader._readable

    def breaking(reader, samples, losses):
        device.victim = device.n_decodes
        return readable(reader, samples, losses)

    monkeypatch.setattr(reading, "_PAUSES", ())
    monkeypatch.setattr(reading.Reader, "_readable", breaking)
    with (
        Loader(a, batch_size=16, on_error="skip") as loader,
        pytest.raises(CorruptShardError, match=LOST),
    ):
        list(loader)


@pytest.mark.parametrize("chain", ["gzip"])
def test_a_loader_tells_of_a_device_that_broke_without_damage(stored):
    options = Options(placement="device")
    place = stored.source.store.url
    a = gpushard.open_array(place, device=fragile(), options=options)
    with (
        Loader(a, batch_size=16) as loader,
        pytest.raises(DeviceError, match="found no damage") as raised,
    ):
        list(loader)
    assert raised.type is DeviceError


@pytest.mark.parametrize("threads", [1, 8])
def test_the_host_looks_within_the_limit(tmp_path, threads):
    """Inner chunks of 4 MiB in hand, which would not fit beside one another."""
    values = np.tile(np.arange(2**20, dtype="i4") // 64, (24, 1))
    gpushard.create_array(
        tmp_path,
        shape=values.shape,
        dtype="i4",
        chunks=(1, 2**20),
        shards=(24, 2**20),
        compressors=ZstdCodec(),
    )[...] = values
    del values
    options = Options(placement="device", memory_limit=64 * MIB, threads=threads)

    def read(device, rows=slice(None), *, breaks=True):
        queue = device.queue

        def breaking(stream, kind, what, run):
            def decode():
                device.is_broken = True

            queue(stream, kind, what, decode if kind == "decode" else run)

        if breaks:
            device.queue = breaking
        return gpushard.open_array(tmp_path, device=device, options=options)[rows]

    warm = partial(read, rows=slice(1), breaks=False)
    came, host_nbytes, _ = grown(read, warm)
    assert came == "DeviceError"

    assert host_nbytes <= 64 * MIB
