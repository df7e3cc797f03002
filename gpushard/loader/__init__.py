"""Shuffled, resumable, distributed batches of samples out of stored arrays."""
