"""Streams that decode to more than they claim, on a device.

nvCOMP 6.0.0 ignores the capacity of its outputs, as was measured on a GPU, and says
that all went well. So does the stand-in here: it writes behind the rows of such
streams.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from numcodecs import Blosc

from cuda_host.device import EmulatedDevice
from cuda_host.launch import SCHEDULES, Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from gpushard import CorruptShardError, open_array
from gpushard.damage import Replaced
from gpushard.device_reading import batch
from gpushard.device_reading.read import DeviceRead, read_to_device
from gpushard.devices.budget import LEAD_NBYTES, row_pitch
from gpushard.devices.decoding import row_tables
from gpushard.devices.output import DeviceOutput
from gpushard.options import MIB
from gpushard.report import Tally
from gpushard.selecting.selection import whole
from overrunning_streams import (
    CHAINS,
    FILL,
    N_CHUNKS,
    N_ITEMS,
    NBYTES,
    blosc_lz4,
    blosc_zstd,
    overrunning_array,
)
from spec_shards import CRC
from zarr_oracle import assert_same_bits, held

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

KERNELS = Kernels()
JUNK = 0xCB
each_chain = pytest.mark.parametrize("chain", CHAINS)


@pytest.fixture(autouse=True)
def _the_same_canaries(monkeypatch):
    """A single byte too many is a canary's own byte once in 256 times."""
    monkeypatch.setattr(row_tables, "_canary_seed", lambda: 0x5EED)


def stored(chain, victims, n_behind, *codecs):
    objects, values = overrunning_array(chain, victims, n_behind, *codecs)
    return open_array(held(objects)), values


def overrunning(**knobs):
    device = EmulatedDevice(KERNELS, load_standin(), **knobs)
    device.standin.overrun_nbytes = MIB // 2
    return device


class Looked:
    """A read that goes on over damage, into the beginning of a larger allocation."""

    def __init__(self, a, device, **options):
        self.damaged, self.by_host = [], []
        nbytes = 4 * N_ITEMS * N_CHUNKS
        room = device.allocate(nbytes + 64 * 1024)
        output = DeviceOutput(room.address, a.shape, (NBYTES, 4), a.dtype)
        grid = N_CHUNKS, 1
        damage = Replaced(lambda e: self.damaged.append(e.inner_chunk[0]), grid)

        def put_rows(chain, fetched, *places):
            for column in fetched.encoded.column.tolist():
                row = fetched.job.chunk_coordinate(fetched.block, column)
                self.by_host.append(row[0])
            decode_here(chain, fetched, *places)

        decode_here = batch.put_rows
        options = a.source.options.but(placement="device", **options)
        a = open_array(a.source.store, options=options)
        what = a.source, [whole(a.shape)], [output], device, Tally()
        with mock.patch.object(batch, "put_rows", put_rows):
            read_to_device(DeviceRead(*what, damage=damage))
        got = room.read()
        self.values = got[:nbytes].view("<i4").reshape(a.shape)
        self.behind = got[nbytes:]


@each_chain
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_overrun_is_named_and_changes_no_other_inner_chunk(chain, schedule):
    a, values = stored(chain, [2], 3 * NBYTES)
    looked = Looked(a, overrunning(seed=schedule, schedule=schedule))
    assert looked.damaged == [2]
    values[2] = FILL
    assert_same_bits(looked.values, values)
    # It has overwritten the rows behind its own, which the host decodes instead.
    assert {2, 3, 4} <= set(looked.by_host) <= {2, 3, 4, 5}
    assert (looked.behind == JUNK).all()


@each_chain
@pytest.mark.parametrize("n_behind", [1, 15, 64, 400])
def test_an_overrun_that_reaches_no_other_row_is_named(chain, n_behind):
    a, values = stored(chain, [2, N_CHUNKS - 1], n_behind)
    looked = Looked(a, overrunning())
    assert sorted(looked.damaged) == [2, N_CHUNKS - 1]
    values[[2, N_CHUNKS - 1]] = FILL
    assert_same_bits(looked.values, values)


@each_chain
def test_an_overrun_of_the_last_row_stays_in_memory_of_the_read(chain):
    a, values = stored(chain, [N_CHUNKS - 1], MIB // 2)
    looked = Looked(a, overrunning())
    assert looked.damaged == [N_CHUNKS - 1]
    assert_same_bits(looked.values[:-1], values[:-1])
    assert (looked.behind == JUNK).all()


@each_chain
def test_whole_streams_are_decoded_on_the_device(chain):
    a, values = stored(chain, [], 0)
    device = overrunning()
    looked = Looked(a, device)
    assert_same_bits(looked.values, values)
    assert looked.by_host == looked.damaged == []
    assert device.standin.complaints == []


@each_chain
def test_the_error_of_an_overrun_is_that_of_the_host(chain):
    a, _ = stored(chain, [4], NBYTES)
    with pytest.raises(CorruptShardError) as host:
        a[...]
    with pytest.raises(CorruptShardError) as device:
        read_on_device(a, [whole(a.shape)], overrunning(), max_rows=3)
    assert str(device.value) == str(host.value)
    assert device.value.inner_chunk == (4, 0)


def test_rows_of_any_size_have_room_for_their_canaries():
    assert LEAD_NBYTES >= 16
    for nbytes in range(1, 1100):
        gap = row_pitch(nbytes) - -(-nbytes // 16) * 16
        assert gap >= 2 * 16
        assert row_pitch(nbytes) % 256 == 0


def test_a_written_checksum_is_trusted_and_its_streams_land():
    """Accidental damage does not get past it."""
    a, values = stored("zstd", [], 0, CRC)
    device = overrunning()
    assert_same_bits(Looked(a, device).values, values)
    assert any(what == "gs_crc32c_verify" for *_, what in device.log)


def test_a_tail_takes_at_most_an_eighth_of_a_small_limit():
    a, values = stored("zstd", [], 0)
    for limit in (64 * 1024, 256 * 1024, MIB):
        device = overrunning()
        looked = Looked(a, device, memory_limit=limit)
        assert_same_bits(looked.values, values)
        assert looked.by_host == []


def test_the_frames_of_blosc_here_are_what_it_reads():
    data = np.arange(N_ITEMS, dtype="<i4").tobytes()
    for encode in (blosc_zstd, blosc_lz4):
        assert Blosc().decode(encode(data, NBYTES)) == data
