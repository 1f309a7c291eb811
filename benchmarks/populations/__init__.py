"""Layers of real models, half of them to tune on and half held out, and how our kernels do on them beside their peers."""
