"""Damage is told from an array that was made anew since it was opened."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

import gpushard
from gpushard.stores.local.store import LocalStore

OLD = {"shape": (4, 4), "dtype": "i4", "chunks": (2, 2), "shards": (4, 4)}
CHANGES = {
    "chunks": {"shape": (8, 8), "chunks": (4, 4), "shards": (8, 8)},
    "dtype": {"dtype": "u1"},
    "no shards": {"shards": None},
    "codec": {"compressors": GzipCodec()},
}
READS = {
    "all": lambda a: a[...],
    "one": lambda a: a[1, 1],
    "points": lambda a: a.vindex[[0, 3], [0, 3]],
    "many": lambda a: a.read_many([(0, 0), 1]),
    "explain": lambda a: a.explain(),
    "joined": lambda a: gpushard.concat([a, a])[...],
    "loader": lambda a: list(gpushard.Loader(a, batch_size=2)),
    "write": lambda a: a.__setitem__((0, 0), 1),
}


class Counting(LocalStore):
    """A store that counts the requests for metadata documents."""

    n_documents = 0

    def read(self, requests):
        self.n_documents += sum("zarr.json" in request.key for request in requests)
        return super().read(requests)

    def get(self, key):
        self.n_documents += "zarr.json" in key
        return super().get(key)


def new(place, **changes):
    a = gpushard.create_array(place, device="cpu", overwrite=True, **OLD | changes)
    a[...] = 7
    return a


def damage(place):
    shard = place / "c/0/0"
    data = np.fromfile(shard, np.uint8)
    data[:16] ^= 255
    data.tofile(shard)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_an_array_that_was_made_anew_is_not_called_damaged(changes, read, tmp_path):
    a = new(tmp_path)
    new(tmp_path, **changes)
    with pytest.raises(gpushard.CorruptShardError, match="made anew") as told:
        read(a)
    assert str(told.value).endswith("open it again.")
    assert "damaged" not in str(told.value)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_damage_of_an_array_that_is_as_it_was_is_told(read, tmp_path):
    a = new(tmp_path)
    new(tmp_path, attributes={"made": "anew"}, shape=(5, 4))  # decodes as before
    damage(tmp_path)
    with pytest.raises(gpushard.CorruptShardError, match="the stored bytes are damag"):
        read(a)


def test_damage_of_an_array_whose_document_is_gone_is_told(tmp_path):
    a = new(tmp_path)
    damage(tmp_path)
    (tmp_path / "zarr.json").unlink()
    with pytest.raises(gpushard.CorruptShardError, match="the stored bytes are damag"):
        a[...]


def test_zarr_is_told_of_damage_where_its_document_leaves_out_defaults(tmp_path):
    new(tmp_path)
    document = json.loads((tmp_path / "zarr.json").read_text())
    inner = document["codecs"][0]["configuration"]["codecs"]
    inner[-1] = {"name": "zstd", "configuration": {"level": 1}}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    damage(tmp_path)
    with zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}):
        a = zarr.open_array(tmp_path, mode="r")
        with pytest.raises(gpushard.CorruptShardError, match="bytes are damaged"):
            a[...]
        new(shutil.copytree(tmp_path, tmp_path / "b"), dtype="u1")
        shutil.move(tmp_path / "b/zarr.json", tmp_path / "zarr.json")
        with pytest.raises(gpushard.CorruptShardError, match="made anew"):
            a[...]


def test_documents_are_not_looked_at_by_reads_that_succeed(tmp_path):
    new(tmp_path)
    store = Counting(tmp_path)
    a = gpushard.open_array(store, device="cpu")
    before = store.n_documents
    for read in READS.values():
        read(a)
    assert store.n_documents == before
    damage(tmp_path)
    with pytest.raises(gpushard.CorruptShardError):
        a[...]
    assert store.n_documents > before
