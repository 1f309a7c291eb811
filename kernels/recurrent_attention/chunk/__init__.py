"""A chunk of tokens at a time: everything but the decays is a matrix product."""
