"""Planning: selections over a layout -> inner chunks, byte ranges, requests. Pure."""
