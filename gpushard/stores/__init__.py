"""Where bytes come from: adapters from files, HTTP, S3 and zarr stores to `base`."""
