"""What lies where in stored objects, and whether it is intact."""
