"""Plausible wrong answers to lesson 11's "Your turn" cells, and what the diagnosis must say."""

PACK = "    return wide[0] | wide[1] << 16 | wide[2] << 32 | wide[3] << 48"
WRONG = {
    "11-bytes": [
        ("def requested(B, T, D, W, e):\n    return e * B * T * D * (W + 2)", "That is the floor"),
        ("def requested(B, T, D, W, e):\n    return B * T * D * (2 * W + 1)", "each has e bytes"),
        ("def requested(B, T, D, W, e):\n    return e * B * T * D * 2 * W", "outputs are missing"),
        ("def requested(B, T, D, W, e):\n    return e * B * T * D * (3 * W + 1)", "the W inputs of its window"),
    ],
    "11-pack": [
        (f"def pack_four(bits):\n    wide = bits.to(torch.int64)\n{PACK}", "filled it up with ones"),
        (
            "def pack_four(bits):\n    wide = bits.to(torch.int64) & 0xFFFF\n"
            "    return wide[3] | wide[2] << 16 | wide[1] << 32 | wide[0] << 48",
            "stands at the low end",
        ),
        (
            "def pack_four(bits):\n    wide = bits.to(torch.int64) & 0xFFFF\n"
            "    return wide[0] | wide[1] << 2 | wide[2] << 4 | wide[3] << 6",
            "16 * i bits up",
        ),
        (f"def pack_four(bits):\n    wide = bits.to(torch.int64) & 0x7FFF\n{PACK}", "the sign, the top bit of the 16,"),
    ],
    "11-back": [
        (
            "def walk_back(X, first, last, W):\n"
            "    for t in range(last, first - 1, -1):\n"
            "        yield t, [X(j) for j in range(t - W + 1, t + 1)]",
            "more than once",
        ),
        (
            "def walk_back(X, first, last, W):\n"
            "    window = [X(j) for j in range(last - W + 2, last + 1)]\n"
            "    for t in range(last, first - 1, -1):\n"
            "        window = [*window, X(t - W + 1)]\n"
            "        yield t, list(window)\n"
            "        window = window[1:]",
            "the oldest input stands first",
        ),
        (
            "def walk_back(X, first, last, W):\n"
            "    window = [X(j) for j in range(last - W + 1, last)]\n"
            "    for t in range(last, first - 1, -1):\n"
            "        window = [*window, X(t)]\n"
            "        yield t, list(window)\n"
            "        window = window[1:]",
            "its oldest input is the new one",
        ),
        (
            "def walk_back(X, first, last, W):\n"
            "    window = [X(j) for j in range(last - W + 2, last + 1)]\n"
            "    for t in range(last, first - 1, -1):\n"
            "        window = [X(t - W + 1), *window]\n"
            "        yield t, list(window)",
            "has 5 inputs, not 4",
        ),
        (
            "def walk_back(X, first, last, W):\n"
            "    window = [X(last)] * (W - 1)\n"
            "    for t in range(last, first - 1, -1):\n"
            "        window = [X(t - W + 1), *window]\n"
            "        yield t, list(window)\n"
            "        window = window[:-1]",
            "before the walk it must hold the inputs [10, 11, 12]",
        ),
    ],
}
