"""Wrong answers to the turn of lesson 01, and what the check must say to each."""

WINDOWS = """
def windows(x, W):
    return {}
"""
VIEW = "torch.as_strided(x, {}, {}, x.storage_offset())"

WRONG = {
    "01-windows": [
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(1, 1)")), "A vector's own stride needn't be 1"),
        (WINDOWS.format(VIEW.format("(x.numel() - W, W)", "(x.stride(0), x.stride(0))")), "N - W + 1 windows"),
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(0, x.stride(0))")), "the view[1, 0] is"),
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(W * x.stride(0), x.stride(0))")), "lie side by side"),
        (WINDOWS.format("torch.stack([x[i : i + W] for i in range(x.numel() - W + 1)])"), "they were copied"),
    ],
}
