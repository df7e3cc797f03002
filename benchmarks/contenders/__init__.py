"""One module per contender, each with the same four functions.

`versions()`, `open_array(path)`, `read_box(handle, key)` and `read_rows(handle, rows)`.
A contender that is not installed fails to import, and the suite says so.
"""

FLOORS = ("floor_memory", "floor_decompress")
PEERS = (
    "zarr_default",
    "zarr_fused",
    "zarrs_pipeline",
    "tensorstore_uncached",
    "tensorstore_cached",
)
OURS = "gpushard_cpu"
OURS_CACHED = "gpushard_cached"
# Those that keep decoded chunks.
CACHED = (OURS_CACHED, "tensorstore_cached")
ALL = (OURS, OURS_CACHED, *PEERS, *FLOORS)
