"""Fetching: one array's share of a read -> shard indexes, then chunk bytes."""
