"""Other tasks for the exercises, drawn from a seed: text, check and solution of one choice (``make variants SEED=7``)."""
