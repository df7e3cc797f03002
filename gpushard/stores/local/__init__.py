"""Objects as files of a local directory: read by position, written under locks."""
