"""Web servers, read by a client of our own."""
