"""The experiments of lesson 02, one property of the machine each; ``benchmarks.machine`` runs and records them."""
