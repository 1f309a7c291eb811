"""The experiments of lesson 03, one property of the machine each; ``benchmarks.machine`` runs and records them."""
