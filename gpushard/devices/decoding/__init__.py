"""Encoded inner chunks in device memory -> decoded ones: which steps, and how."""
