"""Adapters from files, HTTP, S3 and zarr stores to the contract in `base`.

`base` says which errors the methods of a store raise, `writers` those of a writer.
"""
