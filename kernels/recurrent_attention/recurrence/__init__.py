"""One token after the other: every gate, no product larger than a vector's."""
