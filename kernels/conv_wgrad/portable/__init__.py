"""Triton kernels for any GPU, any geometry, and the interpreter."""
