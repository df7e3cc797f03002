"""Converting: any array that is read -> a sharded one of Zarr v3."""
