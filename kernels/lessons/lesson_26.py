"""What lesson 26 goes on with, made from notebooks/26_training.ipynb: see this package."""

def slope(f, x, d, h):
    return (f(x + h * d) - f(x - h * d)) / (2 * h)
