"""The fast path on the host: compiled loops that decode and place without the GIL."""
