"""The functions of the loops (numba): compiled together, to one function of C."""
