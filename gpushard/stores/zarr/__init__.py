"""Stores of zarr-python: ranges of their objects, asked for in its event loop."""
