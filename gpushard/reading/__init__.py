"""Reading: the stages in order, by the way that suits the size of a read."""
