"""How byte ranges are divided into the batches of a device."""

from __future__ import annotations

import pytest

import gpushard
from cuda_host.reads import read_on_device
from device_fetch_cases import CHAINS, emulated, small_batches, stored
from gpushard.device_reading import sink
from gpushard.device_reading.payload import ring
from gpushard.options import Options
from gpushard.reading import requests
from gpushard.selecting import expressions
from gpushard.selecting.selection import whole

SHAPE = (120, 80)


def joins_and_fetches(monkeypatch, place, encoded_nbytes, selections, ahead=None):
    """Whether ranges are joined or fetched, in order, and the requests of fetches."""
    happened, fetched = [], []
    coalesce, fetch = requests.coalesce_for, ring.fetch_wanted
    with monkeypatch.context() as patch:

        def joining(*columns):
            happened.append("join")
            return coalesce(*columns)

        def fetching(source, wanted):
            happened.append("fetch")
            fetched.append([(r.key, r.start, r.stop) for r in wanted])
            return fetch(source, wanted)

        patch.setattr(requests, "coalesce_for", joining)
        patch.setattr(ring, "fetch_wanted", fetching)
        patch.setattr(requests, "_AHEAD_BATCHES", ahead or requests._AHEAD_BATCHES)
        patch.setattr(sink.Budget, "of", lambda *_, **__: small_batches(encoded_nbytes))
        a = gpushard.open_array(place, options=Options(threads=1))
        read_on_device(a, [selection(a.shape) for selection in selections], emulated())
    return happened, fetched


def every_third_row(shape):
    return expressions.basic((slice(1, None, 3),), shape)


@pytest.mark.parametrize("encoded_nbytes", [300, 1000, 2500, 100_000])
@pytest.mark.parametrize("chain", ["none", "zstd"])
@pytest.mark.parametrize("selections", [[whole], [every_third_row, whole]])
def test_batches_joined_in_turn_are_those_of_all_ranges_together(
    tmp_path, monkeypatch, chain, encoded_nbytes, selections
):
    stored(tmp_path, CHAINS[chain], SHAPE)
    what = monkeypatch, tmp_path, encoded_nbytes, selections
    _, together = joins_and_fetches(*what, ahead=10**9)
    _, in_turn = joins_and_fetches(*what)
    assert in_turn == together


def test_the_first_batch_is_fetched_before_the_last_is_joined(tmp_path, monkeypatch):
    stored(tmp_path, None, SHAPE)
    happened, _ = joins_and_fetches(monkeypatch, tmp_path, 2500, [whole])
    assert happened.index("fetch") < happened.count("join")
    assert "join" in happened[happened.index("fetch") :]


def test_a_batch_takes_as_many_shards_as_its_slot_has_room_for(tmp_path, monkeypatch):
    # A shard is four plain inner chunks of 320 bytes: 20 lines of 64.
    stored(tmp_path, None, (128, 40), chunks=(8, 10), shards=(16, 20))
    part = expressions.basic((slice(0, 96),), (128, 40))
    _, fetched = joins_and_fetches(monkeypatch, tmp_path, 2560, [lambda _: part])
    assert [len(batch) for batch in fetched] == [2] * 6
