"""Runs the CUDA kernels, and what calls them, on machines without a GPU."""
