"""What a read tells of itself."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from gpushard.report import CodecPlacement, ReadReport, Tally

CODECS = (
    CodecPlacement("bytes", "scatter", "numpy 2.1", "strides of the last write"),
    CodecPlacement("zstd", "host", "zstandard 0.25", "the device is the CPU"),
)


def report(**counts) -> ReadReport:
    tally = Tally()
    tally.add(**counts)
    tally.add_seconds("fetch", 0.0015)
    tally.add_seconds("decode", 0.25)
    return tally.report(
        array="ocean/salt", device="cpu", out_nbytes=4096, codecs=CODECS
    )


COUNTS = {
    "n_shards": 3,
    "n_missing_shards": 1,
    "n_inner_chunks": 40,
    "n_missing_inner_chunks": 2,
    "n_index_requests": 2,
    "n_payload_requests": 5,
    "index_nbytes": 132,
    "payload_nbytes": 1234567,
    "gap_nbytes": 1000,
}


def test_a_report_reads_as_one_line_a_fact():
    assert str(report(**COUNTS)) == (
        "array         ocean/salt on cpu\n"
        "shards        3 (1 missing)\n"
        "inner chunks  40 (2 missing)\n"
        "requests      2 index (132 bytes),"
        " 5 payload (1,234,567 bytes, 1,000 of them gaps)\n"
        "fetch         host memory\n"
        "output        4,096 bytes\n"
        "codec         bytes: scatter, numpy 2.1 (strides of the last write)\n"
        "codec         zstd: host, zstandard 0.25 (the device is the CPU)\n"
        "milliseconds  fetch 1.50, decode 250.00"
    )


@pytest.mark.parametrize(("n_device", "n_host"), [(7, 0), (0, 7), (5, 2)])
def test_a_report_of_a_device_tells_who_decoded(n_device, n_host):
    counts = {"n_decoded_on_device": n_device, "n_decoded_on_host": n_host}
    lines = str(report(n_refused_inner_chunks=2, **counts)).splitlines()
    told = f"{n_device} on the device (2 refused), {n_host} on the host"
    assert lines[6] == f"decoded       {told}"


def test_a_report_tells_what_was_kept_which_loops_ran_and_why_on_the_device():
    told = dataclasses.replace(
        report(**COUNTS), n_kept_inner_chunks=9, loops="numba 0.6", device_why="no GPU"
    )
    lines = str(told).splitlines()
    assert lines[0] == "array         ocean/salt on cpu (no GPU)"
    assert lines[2] == "inner chunks  40 (2 missing, 9 kept)"
    assert lines[-2] == "loops         compiled, with numba 0.6"


def test_what_was_fetched_several_times_leaves_no_count_below_zero():
    assert report(gap_nbytes=-3).gap_nbytes == 0


def test_the_root_array_is_told_as_a_slash():
    root = dataclasses.replace(report(), array="")
    assert str(root).startswith("array         / on cpu\n")


def test_a_report_survives_json_with_every_field():
    told = json.loads(json.dumps(report(**COUNTS).as_dict()))
    assert set(told) == {field.name for field in dataclasses.fields(ReadReport)}
    assert {name: told[name] for name in COUNTS} == COUNTS
    assert told["milliseconds"] == {"fetch": 1.5, "decode": 250.0}
    assert told["codecs"][1] == {
        "codec": "zstd",
        "where": "host",
        "library": "zstandard 0.25",
        "why": "the device is the CPU",
    }
    assert (told["array"], told["device"], told["out_nbytes"]) == (
        "ocean/salt",
        "cpu",
        4096,
    )


def test_what_was_not_counted_is_zero():
    told = report().as_dict()
    assert [told[name] for name in COUNTS] == [0] * len(COUNTS)


def test_counters_and_times_add_up():
    tally = Tally()
    tally.add(n_shards=2, gap_nbytes=5)
    tally.add(n_shards=3)
    tally.add_seconds("fetch", 0.5)
    tally.add_seconds("fetch", 0.25)
    assert tally.counts == {"n_shards": 5, "gap_nbytes": 5}
    assert tally.seconds == {"fetch": 0.75}


def test_the_time_of_a_stage_counts_even_if_it_fails():
    tally = Tally()

    def fail():
        with tally.stage("fetch"):
            raise OSError

    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011 - the one raised just above
            fail()
    assert list(tally.seconds) == ["fetch"]
    assert tally.seconds["fetch"] > 0


def test_threads_lose_no_counts():
    tally = Tally()

    def count():
        for _ in range(2000):
            tally.add(n_shards=1)
            tally.add_seconds("fetch", 1.0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally.counts["n_shards"], tally.seconds["fetch"]) == (8000, 8000.0)
