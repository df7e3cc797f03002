"""Samples of the historic formats' own writers: read, rewritten, and made alike."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import gpushard
import historic_reader
from places import INTEROP

LEGACY = json.loads((INTEROP / "manifest.json").read_text())["legacy"]
READERS = {
    "v3draft": ("v3-draft-transformer", historic_reader.draft),
    "v2proto": ("v2-prototype-ii", historic_reader.prototype),
}
SAMPLES = [(family, name) for family in READERS for name in LEGACY[family]["arrays"]]

every_sample = pytest.mark.parametrize(("family", "name"), SAMPLES)


def sample(family, name, tmp_path):
    """Copy of a sample's store, the path of its array, and its elements."""
    entry = LEGACY[family]["arrays"][name]
    shutil.copytree(INTEROP / entry["path"], tmp_path / "store")
    values = np.load(INTEROP / entry["expected"])
    return tmp_path / "store", entry.get("array_path", ""), values


@every_sample
def test_a_sample_that_is_written_to_is_read_by_the_drafts_words(
    family, name, tmp_path
):
    store, path, want = sample(family, name, tmp_path)
    _, describe = READERS[family]
    np.testing.assert_array_equal(historic_reader.read(describe(store, path)), want)
    a = gpushard.open_array(store, path, device="cpu")
    np.testing.assert_array_equal(a[...], want)
    part = tuple(slice(n // 3, n // 3 + 2) for n in want.shape)
    a[part] = want[part] = 1
    a[(0,) * want.ndim] = want[(0,) * want.ndim] = 2
    np.testing.assert_array_equal(historic_reader.read(describe(store, path)), want)
    np.testing.assert_array_equal(gpushard.open_array(store, path, device="cpu"), want)


@every_sample
def test_the_same_array_made_anew_has_the_samples_documents(family, name, tmp_path):
    store, path, want = sample(family, name, tmp_path)
    format_name, describe = READERS[family]
    found = describe(store, path)
    n_filters = len(found.codecs) - (found.compressor is not None)
    a = gpushard.create_array(
        tmp_path / "new",
        path,
        format=format_name,
        shape=found.shape,
        dtype=found.dtype,
        chunks=found.chunks,
        shards=[c * n for c, n in zip(found.chunks, found.per_shard, strict=True)],
        filters=found.codecs[:n_filters],
        compressors=found.compressor,
        fill_value=found.fill_value,
        order=found.order,
        chunk_key_encoding={"name": "v2", "separator": found.separator},
        device="cpu",
    )
    a[...] = want
    for document in ("zarr.json", f"meta/root/{path}.array.json", ".zarray"):
        old, new = (place / document for place in (store, tmp_path / "new"))
        assert old.exists() == new.exists()
        if old.exists():
            assert json.loads(new.read_text()) == json.loads(old.read_text())
    again = historic_reader.read(describe(tmp_path / "new", path))
    np.testing.assert_array_equal(again, want)
