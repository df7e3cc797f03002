"""Stored arrays -> shuffled, resumable, distributed batches of samples."""
