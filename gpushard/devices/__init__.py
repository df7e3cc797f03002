"""Where inner chunks are decoded: devices, their kernels and the vendor's decoders."""
