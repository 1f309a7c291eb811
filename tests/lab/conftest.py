"""Decide where kernels run before any test module imports Triton."""

import kernels  # noqa: F401
