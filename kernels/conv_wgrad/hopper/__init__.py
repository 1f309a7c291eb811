"""Warp-specialised Gluon kernels for Hopper and Blackwell, whose tiles TMA brings."""
