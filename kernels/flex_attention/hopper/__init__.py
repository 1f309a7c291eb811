"""Flex attention for Hopper GPUs: warp-specialised kernels in Gluon."""
