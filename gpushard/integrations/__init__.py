"""Doors for zarr, xarray and dask: each imports its package when it is used."""
