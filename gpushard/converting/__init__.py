"""Converting: any readable array -> a sharded array of Zarr v3."""
