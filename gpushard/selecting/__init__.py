"""Selecting: what users ask for -> `Selection`, laid over the cells of a grid. Pure."""
