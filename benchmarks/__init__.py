"""Benchmark suite: gpushard beside its CPU peers, on data made by code."""
