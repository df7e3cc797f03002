"""Selections -> where decoded inner chunks land on a device, as kernel parameters."""
