"""Writing: values -> inner chunks -> shards -> the store."""
