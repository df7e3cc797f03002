"""Data types whose elements are larger than a document, which is small itself."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

import gpushard
from gpushard.errors import UnsupportedError
from gpushard.formats.data_types import parse_data_type
from gpushard.formats.numpy_spelling import parse_numpy_type
from gpushard.options import MAX_DOCUMENT_NBYTES as MOST
from gpushard.options import MIB
from spec_shards import LITTLE, document


def padded(nbytes: int) -> dict:
    configuration = {"length_bytes": nbytes}
    return {"name": "null_terminated_bytes", "configuration": configuration}


def fields(*data_types) -> dict:
    named = [{"name": f"f{i}", "data_type": t} for i, t in enumerate(data_types)]
    return {"name": "struct", "configuration": {"fields": named}}


@pytest.mark.parametrize(
    "data_type",
    [
        padded(MOST + 1),
        {"name": "fixed_length_utf32", "configuration": {"length_bytes": MOST + 4}},
        f"r{8 * MOST + 8}",
        fields(padded(MOST), "uint8"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_elements_larger_than_any_document_are_refused(data_type):
    with pytest.raises(UnsupportedError, match="too large") as caught:
        parse_data_type(data_type)
    assert caught.value.json_path == "data_type"


@pytest.mark.parametrize("spelled", ["|S{}", "|V{}", [["a", "|S{}", [2]]]])
def test_so_are_those_of_older_formats(spelled):
    def said(nbytes: int):
        if isinstance(spelled, str):
            return spelled.format(nbytes)
        return [[name, s.format(nbytes // 2), n] for name, s, n in spelled]

    assert parse_numpy_type(said(MOST), "dtype").stored.itemsize == MOST
    with pytest.raises(UnsupportedError, match="too large"):
        parse_numpy_type(said(MOST + 2), "dtype")


def test_elements_as_large_as_a_document_are_read():
    assert parse_data_type(padded(MOST)).dtype == np.dtype(f"S{MOST}")


def test_a_document_that_names_a_fill_value_of_2_gib_takes_no_memory(tmp_path):
    meta = document((1,), (1,), LITTLE)
    meta |= {"data_type": padded(2**31 - 4), "fill_value": ""}
    (tmp_path / "zarr.json").write_text(json.dumps(meta))
    with pytest.raises(UnsupportedError):
        gpushard.open_array(tmp_path)  # imports what is traced no more
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedError):
            gpushard.open_array(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB
