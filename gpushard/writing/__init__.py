"""Writing: values -> inner chunks -> shards -> the store.

`assign.assign` says which errors a write raises.
"""
