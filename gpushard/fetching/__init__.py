"""Fetching: reads shard indexes, then the bytes of inner chunks, for one array."""
