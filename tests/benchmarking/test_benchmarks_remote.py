"""The benchmark over HTTP compares before it times, and its server is a network."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import __main__ as command
from benchmarks import remote
from benchmarks.configs import KIB
from benchmarks.range_server import Network, RangeServer

pytestmark = pytest.mark.network

FEW = ["--nbytes", str(128 * KIB), "--inner", str(4 * KIB), "--repetitions", "1"]
FEW += ["--codecs", "zstd", "--networks", "near"]


def got(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("remote") / "result.json"
    names = ["gpushard_http", "zarr_obstore", "tensorstore_http_cached"]
    asked = ["remote", *FEW, "--out", str(out), "--contenders", *names]
    assert command.main(asked) == 0
    return json.loads(out.read_text())


def test_contenders_read_over_http_what_is_stored(result):
    workloads = [row["workload"] for row in result["rows"]]
    assert workloads == [
        "full",
        "box",
        "strided",
        "pixel",
        "full",
        "sample",
        "batch256",
    ]
    for row in result["rows"]:
        for name, entry in row["contenders"].items():
            if name in result["versions"]:
                for turn in remote.TURNS:
                    assert len(entry[turn]["wall_s"]) == 1
                    assert entry[turn]["n_requests"][0] > 0
            else:
                assert entry["refused"]


def test_a_read_that_knows_the_indexes_makes_fewer_requests(result):
    (pixel,) = (row for row in result["rows"] if row["workload"] == "pixel")
    ours = pixel["contenders"][remote.OURS]
    assert ours["next"]["n_requests"] < ours["first"]["n_requests"]


def test_other_elements_than_stored_are_told_and_not_timed(monkeypatch, capsys):
    monkeypatch.setattr(remote, "checksum", lambda _: 7)
    asked = ["remote", *FEW, "--contenders", "gpushard_http"]
    assert command.main(asked) == 1
    assert "other elements than stored" in capsys.readouterr().out


def test_a_ratio_is_that_of_the_least_times():
    entries = {"a": [3.0, 2.0], remote.OURS: [1.0, 4.0]}
    row = {"contenders": {n: {"first": {"wall_s": t}} for n, t in entries.items()}}
    assert remote.ratio(row, "first") == 2
    assert remote.ratio(row, "next") is None


def test_the_server_answers_ranges_and_counts_what_it_sends(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    with RangeServer(tmp_path, Network("", 0, 0)) as server:
        assert got(f"{server.url}/x") == (200, bytes(range(100)))
        assert got(f"{server.url}/x", Range="bytes=5-8") == (206, bytes([5, 6, 7, 8]))
        assert got(f"{server.url}/x", Range="bytes=-2") == (206, bytes([98, 99]))
        assert server.sent() == {"n_requests": 3, "nbytes": 106}
        assert server.sent() == {"n_requests": 0, "nbytes": 0}
        for name, headers, status in (
            ("y", {}, 404),
            ("x", {"Range": "bytes=100-"}, 416),
            ("x", {"If-Match": '"other"'}, 412),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                got(f"{server.url}/{name}", **headers)
            assert refused.value.code == status
            refused.value.close()


@pytest.mark.parametrize(("mb_per_s", "line_mb_per_s"), [(1, 0), (0, 4)])
def test_connections_have_a_bandwidth_or_share_a_line(
    tmp_path, mb_per_s, line_mb_per_s
):
    """Four connections, 250 kB each; a read that is too slow proves nothing."""
    (tmp_path / "x").write_bytes(bytes(250_000))
    network = Network("", 0, mb_per_s, line_mb_per_s)
    with RangeServer(tmp_path, network) as server, ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        answers = [*pool.map(got, [f"{server.url}/x"] * 4)]
        assert answers == [(200, bytes(250_000))] * 4
        assert time.monotonic() - began >= 0.24
