"""Data loaders side by side, over the same arrays and with the same kind of shuffle."""
