"""A part of zarr-python's own tests, run with our pipeline as the default.

All of them: ``python tests/zarr_suite``.
"""

from __future__ import annotations

import subprocess
from importlib.util import find_spec

import pytest

from zarr_suite import __main__ as suite

# Chosen to be over in seconds and to read in every way: nearly all have a pipeline
# decode. Of the nested shards, which are written slowly, two in files; of indexing,
# what reads, and neither only writes, nor is refused, nor looks at indexers alone.
PART = [
    "tests/test_indexing.py",
    "tests/test_codecs/test_sharding.py::test_sharding",
    "tests/test_codecs/test_sharding.py::test_sharding_partial",
    "tests/test_codecs/test_sharding.py::test_nested_sharding",
    "tests/test_codecs/test_transpose.py",
    "tests/test_chunk_grids.py::test_create_zero_length_array",
    "tests/test_chunk_grids.py::test_rectilinear_zero_extent_matches_resize",
    "tests/test_properties.py::test_basic_indexing_complex_rectilinear",
    "tests/test_properties.py::test_rectilinear_zero_length_axis_round_trip",
]
CHOSEN = (
    "(not nested_sharding or local-start-end or local-end-start)"
    " and not set_ and not raises and not out_of_bounds and not with_fields"
    " and not sparse_indexer and not iter_"
)


def test_tests_that_did_not_run_are_no_success(tmp_path):
    (tmp_path / "test_broken.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(
        SystemExit, match="did not run; run: pip install pytest-asyncio"
    ):
        suite.run(tmp_path, "zarr", ["test_broken.py"])


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("pytest_asyncio") is None, reason="zarr's tests need pytest-asyncio"
)
def test_zarrs_own_tests_of_reading_pass_with_our_pipeline(tmp_path):
    try:
        sdist = suite.fetch_sdist(tmp_path)
    except (subprocess.SubprocessError, StopIteration) as error:
        pytest.skip(f"the package index does not give zarr's sdist: {error}")
    root = suite.unpack(sdist, tmp_path / "unpacked")
    suite.pretend_installed(root.parent)
    part = [test for test in PART if (root / test.partition("::")[0]).exists()]
    ours = suite.run(root, "gpushard", [*part, "-k", CHOSEN])
    assert suite.only_ours(ours, theirs={}) == []
    decoded = sum("decoded" in test["counts"] for test in ours.values())
    assert decoded >= 400
