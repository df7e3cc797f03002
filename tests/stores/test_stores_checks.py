"""Answers of stores that users write: not bytes, too few, or of another version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpushard
from asked_store import BY_PRICE, AskedStore, put
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.reads import read_on_device
from cuda_host.standin import load_standin
from fused_cases import FUSED
from gpushard.errors import ObjectChangedError, StoreError
from gpushard.fused import choice
from gpushard.selecting.selection import whole
from gpushard.stores.base import ByteRequest, Fetched
from gpushard.stores.checks import checked
from gpushard.stores.key_value import key_value_store
from spec_shards import LITTLE, document, index_of, shard_of, sharding

N = 64
BYTES = bytes(range(1, N + 1))
KINDS = {
    "sharded": (sharding((N // 2,)), shard_of(BYTES[: N // 2], BYTES[N // 2 :])),
    "unsharded": (LITTLE, BYTES),
}
WAYS = {
    "loops": FUSED,
    "general": FUSED.but(compile_nbytes=2**62),
    "small": FUSED.but(compile_nbytes=2**62, small_read_chunks=8),
}


def with_gaps(data: Any) -> Any:
    spread = np.full(2 * len(data), 99, np.uint8)
    spread[::2] = data
    return spread[::2]


# Each has as many elements as there are bytes.
FORMS = {
    "with gaps": with_gaps,
    "backwards": lambda data: data[::-1].copy()[::-1],
    "wider": lambda data: data.astype("i4"),
    "signed": lambda data: data.view("i1"),
    "objects": lambda data: data.astype(object),
    "in columns": lambda data: data.reshape(-1, 1),
    "bytes": lambda data: data.tobytes(),
    "nothing": lambda _: None,
}


class Answering(AskedStore):
    """A store whose answers a test changes, and that looks for no version.

    Attributes
    ----------
    change
        From the answers of the directory's store to those of this one.
    """

    change: Any = staticmethod(lambda answers: answers)

    def read(self, requests: Any) -> Any:
        asked = [request._replace(version=None) for request in requests]
        return self.change(super().read(asked))


def opened(place: Path, kind: str, options: Any) -> tuple[gpushard.Array, Answering]:
    codecs, data = KINDS[kind]
    choice._load()
    store = Answering(put(place, document((N,), (N,), codecs), c_0=data))
    a = gpushard.open_array(store, device="cpu", options=options)
    return a, store


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_array_of_bytes_is_not_read(tmp_path, kind, way, form):
    a, store = opened(tmp_path, kind, WAYS[way])

    def change(answers: Any) -> Any:
        return [one._replace(data=FORMS[form](one.data)) for one in answers]

    assert a[:].tobytes() == BYTES
    store.change = change
    for key in (np.s_[:], np.s_[5:9]):
        with pytest.raises(StoreError, match="something else than bytes"):
            a[key]


@pytest.mark.parametrize("form", FORMS)
def test_a_device_is_not_given_what_is_no_array_of_bytes(tmp_path, form):
    a, store = opened(tmp_path, "sharded", WAYS["general"])
    store.change = lambda answers: [
        one._replace(data=FORMS[form](one.data)) for one in answers
    ]
    device = EmulatedDevice(Kernels(), load_standin())
    with pytest.raises(StoreError, match="something else than bytes"):
        read_on_device(a, [whole((N,))], device)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda answers: answers[1:], "0 answers"),
        (lambda answers: [*answers, None], "2 answers"),
        (lambda _: None, "a NoneType"),
        (iter, "a list_iterator"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_answers_is_an_error_of_the_store(
    tmp_path, kind, way, change, got
):
    a, store = opened(tmp_path, kind, WAYS[way])
    store.change = change
    with pytest.raises(StoreError, match=got):
        a[5:9]


def test_answers_may_come_as_a_tuple(tmp_path):
    a, store = opened(tmp_path, "sharded", WAYS["general"])
    store.change = tuple
    assert a[:].tobytes() == BYTES


@pytest.mark.parametrize("nbytes", [-1, 2**63, "64", 64.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_no_object_has_is_an_error_of_the_store(tmp_path, kind, nbytes):
    a, store = opened(tmp_path, kind, WAYS["general"])
    store.change = lambda answers: [
        one._replace(object_nbytes=nbytes) for one in answers
    ]
    with pytest.raises(StoreError, match="size that no object has"):
        a[5:9]


def test_bytes_of_another_version_are_not_those_asked_for(tmp_path):
    a, store = opened(tmp_path, "sharded", WAYS["small"])
    n_reads = iter(range(100))
    store.change = lambda answers: [
        one._replace(version=f"version {next(n_reads)}") for one in answers
    ]
    with pytest.raises(ObjectChangedError, match="replaced while it was read"):
        a[5:9]
    request = ByteRequest("c/0", 0, 1, "old")
    untold = Fetched(np.zeros(1, np.uint8), None, None)
    assert checked(store, [request], [untold]) == [untold]


@pytest.mark.parametrize("change", [lambda d: d[:-16], lambda d: np.append(d, d[:16])])
@pytest.mark.parametrize("errors", ["raise", "fill"])
def test_a_whole_object_has_as_many_bytes_as_its_size_tells(tmp_path, errors, change):
    """Other bytes have an index without a checksum that names other inner chunks."""
    inside = sharding((N // 4,), index_codecs=[LITTLE])
    entries = [(first, N // 4) for first in range(0, N, N // 4)]
    shard = BYTES + index_of(entries, checksum=False)
    place = put(tmp_path, document((N,), (N,), inside), c_0=shard)
    store = Answering(place, BY_PRICE)
    options = gpushard.Options(whole_object_fraction=0.25)
    a = gpushard.open_array(store, device="cpu", options=options)
    store.change = lambda answers: [
        one._replace(data=change(one.data)) for one in answers
    ]
    for quarter in range(4):
        key = np.s_[quarter * N // 4 : (quarter + 1) * N // 4]
        if errors == "fill":
            with pytest.warns(gpushard.DamageWarning, match="than a whole object"):
                assert not a.read(key, errors=errors).any()
            continue
        with pytest.raises(gpushard.CorruptShardError, match="than a whole object"):
            a[key]
    store.change = tuple
    assert a[:].tobytes() == BYTES


def test_a_store_that_answers_nothing_is_named_wherever_it_is_asked(tmp_path):
    root = put(tmp_path, {"zarr_format": 3, "node_type": "group"})
    put(root / "a", document((N,), (N,), LITTLE), c_0=BYTES)
    store = Answering(root, BY_PRICE)
    a = gpushard.open_array(store, "a", device="cpu")
    store.change = lambda _: None
    looks = [
        lambda: a[:],
        lambda: list(gpushard.open_group(store, device="cpu")),
        lambda: gpushard.convert(a, tmp_path / "converted"),
        lambda: gpushard.open_array(store, "b", device="cpu"),
    ]
    for look in looks:
        with pytest.raises(StoreError, match="got a NoneType"):
            look()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda _: None, "got a NoneType"),
        (lambda answers: answers[1:], "got 0 answers"),
        (
            lambda answers: [a._replace(data=a.data.astype("i4")) for a in answers],
            "int32",
        ),
    ],
)
def test_values_of_a_store_that_keeps_no_contract_are_not_handed_on(
    tmp_path, change, match
):
    store = Answering(put(tmp_path, {}, c_0=BYTES))
    values = key_value_store(store)
    span = "c/0", (2, 5)
    assert values.get_partial_values([span]) == [BYTES[2:7]]
    store.change = change
    with pytest.raises(StoreError, match=match):
        values.get_partial_values([span])
