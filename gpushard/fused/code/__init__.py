"""Machine code of the loops: made, kept on disk, shipped, mapped into the process."""
