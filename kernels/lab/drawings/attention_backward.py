"""Attention, backward: its five matrix products as a flow from what is stored to three gradients."""

from kernels.lab.drawings.language import NOTE, drawing

#: Product -> (what it is, the kernels that compute it).
PRODUCTS = {1: "c q kᵀ", 2: "do vᵀ", 3: "pᵀ do", 4: "c dsᵀ q", 5: "c ds k"}
KERNELS = {"dq": (1, 2, 5), "dk and dv": (1, 2, 3, 4)}


def attention_backward(kernel: str | None = None):
    """The five products of attention's backward pass, and what stands between them.

    kernel: "dq" or "dk and dv" lights the products that this kernel computes; all of them unless told.
    """
    if kernel is not None and kernel not in KERNELS:
        raise ValueError(f"kernel is {kernel!r}, needs to be one of {', '.join(map(repr, KERNELS))}, or None")
    lit = KERNELS[kernel] if kernel else tuple(PRODUCTS)

    def draw(board):
        board.name("input", "tensors")
        board.name("program", "a matrix product")
        board.name("memory", "a tile at a time, never stored whole")
        board.name("output", "gradients")

        def tensor(x, y, name, on):
            return board.box(x, y, 1.3, 0.9, "input", name, lit=on)

        def product(x, y, number):
            return board.box(x, y, 2.5, 0.9, "program", f"{number}:  {PRODUCTS[number]}", lit=number in lit)

        def tile(x, y, name):
            return board.box(x, y, 3.8, 1.1, "memory", name)

        def flow(start, end, on=True, **more):
            board.arrow(start, end, lit=on, **more)

        q, k = tensor(0, 0, "q", True), tensor(0, 1.3, "k", True)
        do, v = tensor(0, 4.4, "do", True), tensor(0, 5.7, "v", True)
        scores, merits = product(2.6, 0.65, 1), product(2.6, 5.05, 2)
        for start, end in ((q, scores), (k, scores), (do, merits), (v, merits)):
            flow(start.side("right"), end.side("left"))
        p = tile(6.9, 0.55, "p = e^(f(s) − ℓ)")
        ds = tile(6.9, 4.95, "ds = f′ p (dp − Δ)")
        flow(scores.side("right"), p.side("left"), text="s", shift=(0, -0.3))
        flow(merits.side("right"), ds.side("left"), text="dp", shift=(0, -0.3))
        flow(p.side("bottom"), ds.side("top"), text="p", shift=(0.35, 0))
        row = tensor(8.15, -1.3, "ℓ", True)
        flow(row.side("bottom"), p.side("top"))
        row = tensor(8.15, 7.0, "Δ", True)
        flow(row.side("top"), ds.side("bottom"))
        ends = ((3, 0.65, p, "do", "dv", "sum over queries"), (4, 3.55, ds, "q", "dk", "sum over queries"),
                (5, 6.6, ds, "k", "dq", "sum over keys"))  # fmt: skip
        for number, y, source, other, name, summed in ends:
            on = number in lit
            at = product(12.6, y, number)
            flow(source.side("right"), at.side("left"), on, text="p" if source is p else "", shift=(0, -0.3))
            small = board.box(13.35, y - 1.25, 1.0, 0.75, "input", other, lit=on)
            flow(small.side("bottom"), at.side("top"), on)
            out = board.box(16.4, y, 1.4, 0.9, "output", name, lit=on)
            flow(at.side("right"), out.side("left"), on)
            board.text(out.middle[0], y + 1.2, summed, size=NOTE) if on else None

    said = "; ".join(f"{i} is {PRODUCTS[i]}" for i in lit)
    alt = (
        "A flow from left to right in two rows. Above, q and k meet in product 1, whose scores s become p with the row's ℓ; "
        "p and do meet in product 3 and give dv. Below, do and v meet in product 2, whose dp becomes ds with p from above "
        f"and Δ; ds meets q in product 4 and gives dk, and k in product 5 and gives dq. Lit: {said}."
    )
    return drawing(8, 3.6, draw, alt=alt)
