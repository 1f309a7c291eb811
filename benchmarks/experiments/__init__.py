"""The experiments of lessons 03 and 04, one property of the machine each; ``benchmarks.machine`` runs and records them."""
