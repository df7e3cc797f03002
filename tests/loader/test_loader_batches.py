"""Batches cut from loads: who joins them, and what their consumer waits for."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import Loader
from gpushard.loader import batches, reading
from loader_data import IMAGES, LABELS, ORDERS, N, images, labels


@pytest.fixture
def device():
    return EmulatedDevice(Kernels(), load_standin(), seed=3)


@pytest.mark.parametrize("order", ["rows", "chunks", "shards"])
@pytest.mark.usefixtures("device_begins_at_once")
def test_the_consumer_of_a_device_never_waits_for_it(device, order, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 60)
    waiting, wait = set(), device.wait

    def noted(event):
        waiting.add(threading.get_ident())
        wait(event)

    monkeypatch.setattr(device, "wait", noted)
    arrays = {"images": images(), "labels": labels()}
    with Loader(arrays, batch_size=8, device=device, **ORDERS[order]) as loader:
        n_samples = sum(batch["labels"].shape[0] for batch in loader)
    assert n_samples == N
    assert any(kind == "copy" for _, kind, _ in device.log)  # batches were joined
    assert waiting
    assert threading.get_ident() not in waiting


@pytest.mark.parametrize(
    ("order", "batch_size"),
    [
        *((order, size) for order in ORDERS for size in (8, 40)),
        *((order, size) for order in ("global", "rows") for size in (1, 7, 103)),
    ],
)
def test_loads_of_any_size_give_the_same_batches(order, batch_size, monkeypatch):
    arrays = {"images": images(), "labels": labels()}
    options = {"batch_size": batch_size, "return_index": True, **ORDERS[order]}
    wanted = list(Loader(arrays, **options))
    monkeypatch.setattr(reading, "LOAD_NBYTES", 60)
    monkeypatch.setattr(reading, "whole_batches", lambda _start, n, _size: n)
    got = list(Loader(arrays, **options))
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert np.array_equal(one["index"], other["index"])
        assert np.array_equal(one["images"], IMAGES[one["index"]])
        assert np.array_equal(one["labels"], LABELS[one["index"]])


@pytest.mark.parametrize("batch_size", [3, 8, 10])
def test_reads_of_samples_in_any_order_end_where_a_batch_ends(batch_size, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 400)
    cut, joined = batches._batch_of, []
    monkeypatch.setattr(batches, "_batch_of", lambda *a: joined.append(a) or cut(*a))
    with Loader(images(), batch_size=batch_size, shuffle=True) as loader:
        assert sum(map(len, loader)) == N
    assert not joined


@pytest.mark.parametrize("dtype", [">f4", ">i8"])
def test_a_batch_of_two_reads_keeps_the_byte_order_asked_for(dtype, monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 60)
    with Loader(labels(), batch_size=16, dtype=dtype) as loader:
        batches = list(loader)
    assert {batch.dtype for batch in batches} == {np.dtype(dtype)}
    assert np.array_equal(np.concatenate(batches), LABELS)
