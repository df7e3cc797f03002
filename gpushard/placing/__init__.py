"""Placing: fetched bytes -> decoded elements in the outputs, on the host."""
