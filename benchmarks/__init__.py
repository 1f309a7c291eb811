"""Speed, measured: one module a kernel, run as ``python -m benchmarks.<kernel>``; results are recorded in ``results/``."""

from kernels import runtime as _runtime  # noqa: F401  before Triton, which the modules here import
