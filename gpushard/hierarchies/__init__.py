"""Where the metadata documents of each format lie in a store."""
