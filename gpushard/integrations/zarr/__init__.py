"""zarr's own arrays, read by gpushard: a codec pipeline for zarr-python."""

from gpushard.integrations.zarr.pipeline import FallbackWarning, GpushardCodecPipeline

__all__ = ["FallbackWarning", "GpushardCodecPipeline"]
