"""Reading: runs the stages of a read in order, in a way that suits its size."""
