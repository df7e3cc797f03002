"""Where decoded inner chunks land in device memory, and what the kernels are told."""
