"""Where things lie in a checkout."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# Written by other programs: whole arrays, single shards, and historic ones.
INTEROP = TESTS / "data" / "interop"
DIGITS = TESTS / "data" / "real" / "mnist.zarr"
