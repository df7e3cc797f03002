"""Devices, their kernels and the vendor's decoders; nothing here knows of stores."""
