"""Short reads of local files, each planned and run by few calls of the loops."""
