"""How the bytes of inner chunks come from a store to device memory."""
