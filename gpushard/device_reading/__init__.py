"""Reads whose result lies on a device: bytes are fetched there in batches."""
