"""Speed, measured: one module a kernel, run as ``python -m benchmarks.<kernel>``; results are recorded in ``results/``."""
