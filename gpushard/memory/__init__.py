"""Memory: what is kept between reads, and whether what a read takes fits its limit."""
