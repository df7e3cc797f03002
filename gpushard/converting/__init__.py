"""Converting: any readable array -> a sharded array of Zarr v3.

`convert.convert` says which errors a conversion raises.
"""
