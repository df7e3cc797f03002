"""Doors for zarr and xarray: each imports its package when it is used."""
