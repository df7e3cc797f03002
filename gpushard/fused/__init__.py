"""The fast way of the host: compiled loops that decode and place without the GIL."""
