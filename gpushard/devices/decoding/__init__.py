"""Encoded inner chunks in device memory -> decoded ones: steps and their kernels."""
