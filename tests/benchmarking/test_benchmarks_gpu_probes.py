"""What a GPU's decoders are asked about damage and small buffers, emulated here."""

from __future__ import annotations

import pytest

from benchmarks.gpu import probes
from benchmarks.gpu.run import Run
from benchmarks.gpu.streams import ENCODERS, Batch


@pytest.fixture
def rows(tmp_path):
    return {}


@pytest.fixture
def run(tmp_path, rows):
    def emit(row):
        rows[row.pop("id")] = row

    return Run("cuda_host.machine:emulated", "tiny", tmp_path, emit=emit)


def test_each_damaged_stream_is_asked_about_alone(run, rows):
    probes.damaged("probes/damaged", run)
    assert len(rows) == 12 * len(ENCODERS)
    assert not any(row.get("crashed") for row in rows.values())
    is_right = {name: row["is_right"] for name, row in rows.items()}
    assert not any(is_right[name] for name in rows if "/cut-at-" in name)
    # Its checksum covers all; other formats have none.
    assert not any(is_right[n] for n in rows if "/Gzip/bit-at-500" in n)


def test_a_stream_that_was_asked_about_is_not_asked_about_again(run, rows):
    """Its process died of it."""
    run.done = frozenset({"probes/damaged/Zstd/bit-at-0"})
    probes.damaged("probes/damaged", run)
    assert len(rows) == 12 * len(ENCODERS) - 1
    assert not run.done & set(rows)


def test_bytes_behind_a_buffer_are_seen_to_be_written_to(run, rows, monkeypatch):
    probes.overruns("probes/overruns", run)
    assert len(rows) == 3 * len(ENCODERS)
    assert {row["n_changed_behind"] for row in rows.values()} == {0}
    decode = Batch.enqueue

    def overrun(batch, stream):
        decode(batch, stream)
        end = batch.decoded + int(batch.capacities[0])
        written = batch.device.allocate_pinned(7)
        written[:] = 1
        batch.device.upload(end + 9, written, stream)
        batch.device.wait_for(stream)

    monkeypatch.setattr(Batch, "enqueue", overrun)
    probes.overruns("probes/overruns", run)
    told = {(row["n_changed_behind"], row["changed_up_to"]) for row in rows.values()}
    assert told == {(7, 16)}
