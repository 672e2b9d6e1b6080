"""The kernels for CPUs, and the decoder that is one of them."""
