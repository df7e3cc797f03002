"""The draft's sharding storage transformer, as a view on a key/value store."""

from __future__ import annotations

from gpushard.transformer.stack import transformed
from gpushard.transformer.store import ShardedStore

__all__ = ["ShardedStore", "transformed"]
