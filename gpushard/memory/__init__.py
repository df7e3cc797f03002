"""Memory: what is kept between reads, and whether a read fits its memory limit."""
