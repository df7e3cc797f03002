"""Adapters from files, HTTP, S3 and zarr stores to the contract in `base`."""
