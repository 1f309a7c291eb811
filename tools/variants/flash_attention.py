"""Exercise 06 in other words: a divisor, an exponent or a slope in the temperature's place, and other lists of blocks."""

from kernels.check.flash_variations import Scored
from tools.variants.edits import Edits


def edits(task: Scored) -> Edits:
    """What changes in the solution of exercise 06."""
    w = Words(task)
    return {
        **_specification(w),
        **_forward(w),
        **_lists(w),
        **_derivation(w),
        **_backward(w),
        "together": _together(w),
        "symptoms": (
            r"* **Right where all temperatures are 1.** $\tau$ belongs to the scores, before the score mod, and so to $\mathrm{d}k$'s queries and to $\mathrm{d}q$; once, not twice.",
            w.pick(
                divisor=r"* **NaN in `dk` for ragged M.** A row beyond M has $\tau = 0$ where the load gives 0, and 0 / 0: let it give 1.",
                exponent=r"* **Right where all of $\tau$ are 0.** $e^\tau$ belongs to the scores, before the score mod, and so to $\mathrm{d}k$'s queries, to $\mathrm{d}q$ and to $\mathrm{d}\tau$; once, not twice.",
                slope=r"* **Right where all slopes are 0.** $\tau_m (n - m)$ belongs to the score, before the score mod: `SCORE_GRADIENT` takes it with the slope in it, too.",
            ),
        ),
    }


class Words:
    """The scores and the lists of a variation in formulas, in code and in words."""

    def __init__(self, task: Scored):
        self.task, self.slope = task, task.tau == "slope"
        self.falling = task.order == "descending"

    def pick(self, **by_tau: str) -> str:
        """One of these, by what tau does."""
        return by_tau[self.task.tau]

    @property
    def factor(self) -> str:
        """What the queries are multiplied by, in a formula."""
        return self.pick(divisor=r"\tau_m^{-1}\,", exponent=r"e^{\tau_m}\,", slope="")

    @property
    def load(self) -> str:
        """What a load of tau gives beyond M."""
        return "1.0" if self.task.tau == "divisor" else "0.0"

    def in_order(self, *blocks: int) -> str:
        """Blocks as a list names them."""
        return " and ".join(map(str, sorted(blocks, reverse=self.falling)))


def _specification(w: Words) -> Edits:
    said = w.pick(
        divisor="Each query has a **temperature** $\\tau_m$, `tau` `[H, M]` in float32, that divides its scores, as in physics: a cold query looks\nat few keys. It is positive. With a score mod $f$:",
        exponent="Each query has a **log-temperature** $\\tau_m$, `tau` `[H, M]` in float32: its scores are multiplied by $e^{\\tau_m}$, so that training cannot turn\nthem over. Any number is one, also 0 or a negative one. With a score mod $f$:",
        slope="Each query has a **slope** $\\tau_m$, `tau` `[H, M]` in float32, by which its scores grow or fall from key to key: a query chooses how far it\nlooks back. Any number is one, also 0 or a negative one. With a score mod $f$:",
    )
    score = w.pick(
        divisor=r"s_{mn} = \mathtt{scale}\; q_m \cdot k_n \,/\, \tau_m",
        exponent=r"s_{mn} = e^{\tau_m}\,\mathtt{scale}\; q_m \cdot k_n",
        slope=r"s_{mn} = \mathtt{scale}\; q_m \cdot k_n + \tau_m\,(n - m)",
    )
    name = w.pick(divisor="temperature", exponent="log-temperature", slope="slope")
    return {
        "title": (
            "# Exercise 06 · Flash attention with a temperature",
            f"# Exercise 06 · Flash attention with a {name}",
            "values and temperatures, which no lesson has.",
            f"values and {name}s, which no lesson has.",
        ),
        "specification": (
            """Each query has a **temperature** $\\tau_m$, `tau` `[H, M]` in float32: a model that reads longer texts than it
was trained on sharpens its later queries with one. Any number is one, also 0 or a negative one. With a score mod $f$:""",
            said,
            r"s_{mn} = \tau_m\,\mathtt{scale}\; q_m \cdot k_n",
            score,
        ),
    }


def _forward(w: Words) -> Edits:
    order = "descending" if w.falling else "ascending"
    tau = "    tau = tl.load(tau_ptr + h * stride_tau[0] + offs_m * stride_tau[1], mask=mask_m, other=0.0)\n"
    loaded = tau.replace("other=0.0", f"other={w.load}")
    tile = "tile(q_ptr, stride_q, h, offs_m, offs_d, mask_m, mask_d)"
    q = w.pick(divisor=f"{tile} / tau[:, None]", exponent=f"tl.exp(tau)[:, None] * {tile}", slope=tile)
    changes = {
        "forward-task": (
            "how\nmany blocks are partial (`num[0]`) and full (`num[1]`), `idx` `[2, R, C]` which, in ascending order;",
            f"how\nmany blocks are full (`num[0]`) and partial (`num[1]`), `idx` `[2, R, C]` which, in {order} order;",
            "The temperature belongs to the query: multiply it onto `q` where that is loaded, and `logits` need not know of it.",
            w.pick(
                divisor="The temperature belongs to the query: divide `q` by it where that is loaded, and `logits` need not know of it.",
                exponent="The factor $e^{\\tau}$ belongs to the query: multiply it onto `q` where that is loaded, and `logits` need not know of it.",
                slope="The slope belongs to the pair of a query and a key: `logits` takes the block's `tau`.",
            ),
        ),
        "forward-kernel": (
            "# The queries, each times its temperature.",
            w.pick(
                divisor="# The queries, each divided by its temperature.",
                exponent="# The queries, each times e to its log-temperature.",
                slope="# The queries, and their slopes.",
            ),
            tau + "    q = tau[:, None] * tile(q_ptr, stride_q, h, offs_m, offs_d, mask_m, mask_d)\n",
            loaded + f"    q = {q}\n",
            "# 0: the partial blocks, 1: the full ones",
            "# 0: the full blocks, 1: the partial ones",
            "s, z = logits(q, k, offs_m, offs_n, scale, M, N, kind == 0, SCORE_MOD, MASK_MOD)",
            f"s, z = logits(q, k, {'tau, ' * w.slope}offs_m, offs_n, scale, M, N, kind == 1, SCORE_MOD, MASK_MOD)",
        ),
        "forward-hints": _small_forward(w),
    }
    if w.slope:
        changes["logits-kernel"] = (
            "    q, k, offs_m, offs_n, scale, M, N, PARTIAL: tl.constexpr,",
            "    q, k, tau, offs_m, offs_n, scale, M, N, PARTIAL: tl.constexpr,",
            '"""s = scale * q k^T of warm queries, and z:',
            '"""s = scale * q k^T + tau * (n - m), and z:',
            's = scale * tl.dot(q, tl.trans(k), input_precision="ieee")',
            's = scale * tl.dot(q, tl.trans(k), input_precision="ieee") + tau[:, None] * (n - m)',
        )
    return changes


def _small_forward(w: Words) -> tuple[str, ...]:
    """The third hint: the same scores from another number."""
    same = r"`scale` $q \cdot k_n$ is (any, any), $(0, \log 2)$, $(\log 3, \text{any})$."
    sloped = r"`scale` $q \cdot k_n$ is (any, any), $(\log 2, \log 4)$, $(\log \tfrac92, \text{any})$, and the query stands at $m = 3$."
    tau = w.pick(divisor=r"\tfrac12", exponent=r"\log 2", slope=r"\log 2")
    end = w.pick(
        divisor=r"With $\tau = 1$ it would be $\log 6$.",
        exponent=r"With $\tau = 0$ it would be $\log 6$.",
        slope=r"With $\tau = 0$ it would be $\log \tfrac{21}2$.",
    )
    return (
        r"One query, $\tau = 2$, three blocks of two keys each, all partial; " + same,
        rf"One query, $\tau = {tau}$, three blocks of two keys each, all partial; {sloped if w.slope else same}",
        "So\n$s$ is twice that, $z =",
        "So\n" + (r"$s$ is that plus $(n - 3) \log 2$, $z =" if w.slope else "$s$ is twice that, $z ="),
        r"With $\tau = 1$ it would be $\log 6$.",
        end,
    )


def _lists(w: Words) -> Edits:
    partial = "            tl.store(idx_ptr + r * C + partial, c)\n"
    full = "            tl.store(idx_ptr + (R + r) * C + full, c)\n"
    return {
        "lists-task": (
            "has `num` = [[1, 1], [0, 1]]: row 0 one partial block, 0; row 1 one partial block, 1, and one\nfull block, 0.",
            "has `num` = [[0, 1], [1, 1]]: row 0 one partial block, 0; row 1 one full block, 0, and one\npartial block, 1."
            + " A row's blocks are listed from the last to the first." * w.falling,
        ),
        "lists-kernel": (
            full,
            full.replace("(R + r)", "r"),
            partial,
            partial.replace("r * C", "(R + r) * C"),
            "    tl.store(num_ptr + r, partial)\n    tl.store(num_ptr + R + r, full)\n",
            "    tl.store(num_ptr + r, full)\n    tl.store(num_ptr + R + r, partial)\n",
            *(
                (
                    "    for c in range(C):\n",
                    "    for i in range(C):\n        c = C - 1 - i  # from the last block to the first\n",
                )
                if w.falling
                else ()
            ),
        ),
        "lists-hints": (
            r"So `num` is [[1, 2], [1, 0]]. Row 0 of blocks writes 1 at place 0 of `idx` and 0 at place $(1 \cdot 2 + 0) \cdot 3 = 6$; row"
            + "\n1 writes 1 and 2 at the places 3 and 4. For the keys, rows of blocks are columns: `num_t` is [[0, 2, 1], [1, 0, 0]], and block 1 of the keys lists the blocks of queries 0 and 1.",
            r"So `num` is [[1, 0], [1, 2]]. Row 0 of blocks writes 0 at place 0 of `idx` and 1 at place $(1 \cdot 2 + 0) \cdot 3 = 6$; row"
            + f"\n1 writes {w.in_order(1, 2)} at the places 9 and 10. For the keys, rows of blocks are columns: `num_t` is [[1, 0, 0], [0, 2, 1]], and block 1 of the keys lists the blocks of queries {w.in_order(0, 1)}.",
        ),
    }


def _derivation(w: Words) -> Edits:
    scores = w.pick(
        divisor="p = (bare / tau[..., None]).softmax(-1)",
        exponent="p = (tau.exp()[..., None] * bare).softmax(-1)",
        slope="apart = torch.arange(k.shape[1], device=q.device) - torch.arange(q.shape[1], device=q.device)[:, None]  # n - m\n"
        "    p = (bare + tau[..., None] * apart).softmax(-1)",
    )
    total = w.pick(
        divisor="dtau = -(dz * bare).sum(-1) / tau**2",
        exponent="dtau = tau.exp() * (dz * bare).sum(-1)",
        slope="dtau = (dz * apart).sum(-1)",
    )
    changes = {
        "dtau-formula": (
            "    p = (tau[..., None] * bare).softmax(-1)",
            f"    {scores}",
            "    dtau = (dz * bare).sum(-1)",
            f"    {total}",
        )
    }
    if w.slope:
        changes["dtau-formula"] += (
            "# The scores without their temperature, the probabilities, dz, and the sum. (roughly 4 lines)",
            "# The scores without their slope, the probabilities, dz, and the sum. (roughly 5 lines)",
        )
    return changes


def _backward(w: Words) -> Edits:
    dq = rf"\mathrm{{d}}q_m = {w.factor}\mathtt{{scale}} \sum_n \mathrm{{d}}s_{{mn}} k_n"
    dk = rf"\mathrm{{d}}k_n = \mathtt{{scale}} \sum_{{h, m}} \mathrm{{d}}s_{{mn}} {w.factor}q_m"
    warm = w.pick(divisor=r"q / \tau", exponent=r"e^\tau q", slope="q")
    asks = w.pick(
        divisor=r"The sum $\mathrm{d}s\, k$ holds $\mathrm{d}\tau$ too: what is its product with $q_m$, and what does a divisor make of it?",
        exponent=r"The sum $\mathrm{d}s\, k$ holds $\mathrm{d}\tau$ too: what is its product with $q_m$, and which factor is missing?",
        slope=r"$\mathrm{d}\tau$ needs $\mathrm{d}s$ itself, block by block: which number stands beside $\tau_m$ in $s_{mn}$?",
    )
    return {
        "backward-task": (
            r"\mathrm{d}q_m = \tau_m\,\mathtt{scale} \sum_n \mathrm{d}s_{mn} k_n",
            dq,
            r"\mathrm{d}k_n = \mathtt{scale} \sum_{h, m} \mathrm{d}s_{mn} \tau_m q_m",
            dk,
        ),
        "backward-kernel": _backward_kernel(w),
        "backward-hints": (
            r"$\mathrm{d}k$ adds $\mathrm{d}s^\top (\tau q)$ and",
            rf"$\mathrm{{d}}k$ adds $\mathrm{{d}}s^\top ({warm})$ and"
            if warm != "q"
            else r"$\mathrm{d}k$ adds $\mathrm{d}s^\top q$ and",
            r"The sum $\mathrm{d}s\, k$ holds $\mathrm{d}\tau$ too: what is its product with $q_m$?",
            asks,
            *_small_backward(w),
        ),
    }


def _small_backward(w: Words) -> tuple[str, ...]:
    """The third hint: the same probabilities from another number."""
    begin = r"One query $q = 3$ with $\tau = 2$, two keys $k = (1, -1)$ with values $v = (1, 0)$, `scale` $= 1/6$, $\mathrm{d}o = 1$, no score mod. The bare scores are $\pm\tfrac12$, $s = (1, -1)$, $\mathrm{lse} = \log(e + e^{-1})$."
    tau = w.pick(divisor=r"\tfrac12", exponent=r"\log 2", slope="-1")
    new = begin.replace(r"\tau = 2", rf"\tau = {tau}")
    if w.slope:
        new = new.replace("One query $q = 3$", "One query $q = 3$ at $m = 0$").replace(
            r"$s = (1, -1)$, $\mathrm{lse} = \log(e + e^{-1})$",
            r"$s = (\tfrac12, -\tfrac32)$, $\mathrm{lse} = \log(e^{1/2} + e^{-3/2})$",
        )
    old = r"So $\mathrm{d}q = 2 \cdot \tfrac16 \cdot 0.210 = 0.070$, and $\mathrm{d}\tau = 0.105 \cdot \tfrac12 + 0.105 \cdot \tfrac12 = 0.105$, which is $\tfrac16 \cdot 0.210 \cdot q$. From $\mathrm{d}q$ it would be $q\, \mathrm{d}q / \tau$: wrong where $\tau = 0$."
    total = w.pick(
        divisor=r"So $\mathrm{d}q = 2 \cdot \tfrac16 \cdot 0.210 = 0.070$, and $\mathrm{d}\tau = -4\,(0.105 \cdot \tfrac12 + 0.105 \cdot \tfrac12) = -0.420$, which is $-\tfrac16 \cdot 0.210 \cdot q / \tau^2$.",
        exponent=r"So $\mathrm{d}q = 2 \cdot \tfrac16 \cdot 0.210 = 0.070$, and $\mathrm{d}\tau = 2\,(0.105 \cdot \tfrac12 + 0.105 \cdot \tfrac12) = 0.210$, which is $q\, \mathrm{d}q$.",
        slope=r"So $\mathrm{d}q = \tfrac16 \cdot 0.210 = 0.035$, and $\mathrm{d}\tau = 0.105 \cdot 0 - 0.105 \cdot 1 = -0.105$: key 1 stands one further than the query.",
    )
    return (
        begin,
        new,
        old,
        total,
        *(
            (
                "each with its own $\\tau$, a program of the keys' kernel adds $0.105 \\cdot 2 \\cdot 3 / 6$",
                "each with its own $\\tau$, a program of the keys' kernel adds $0.105 \\cdot 3 / 6$",
            )
            if w.slope
            else ()
        ),
    )


def _backward_kernel(w: Words) -> tuple[str, ...]:
    tau = "    tau = tl.load(tau_ptr + h * stride_tau[0] + offs_m * stride_tau[1], mask=mask_m, other=0.0)\n"
    queries = w.pick(
        divisor="    q = bare / tau[:, None]\n",
        exponent="    warmth = tl.exp(tau)\n    q = warmth[:, None] * bare\n",
        slope="",
    )
    rows = "                rows_tau = tl.load(tau_ptr + offs_m * stride_tau[1] + h * stride_tau[0], mask=mask_m, other=0.0)\n"
    tile = "tile(q_ptr, stride_q, h, offs_m, offs_d, mask_m, mask_d)"
    warm = w.pick(divisor=f"{tile} / rows_tau[:, None]", exponent=f"tl.exp(rows_tau)[:, None] * {tile}", slope=tile)
    store = w.pick(divisor="scale / tau[:, None] * dq", exponent="scale * warmth[:, None] * dq", slope="scale * dq")
    total = w.pick(
        divisor="    dtau = -scale * tl.sum(bare * dq, axis=1) / (tau * tau)\n",
        exponent="    dtau = scale * warmth * tl.sum(bare * dq, axis=1)\n",
        slope="",
    )
    load = "    bare = tile(q_ptr, stride_q, h, offs_m, offs_d, mask_m, mask_d)\n    q = tau[:, None] * bare\n"
    partial = """                kind == 0, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,
            )
            dq += tl.dot(ds, k, input_precision="ieee")
"""
    slope = "            dtau += tl.sum(ds * (offs_n[None, :] - offs_m[:, None]), axis=1)\n"
    calls = ()
    if w.slope:
        calls = (
            "    q, k, v, do, lse, delta, offs_m, offs_n, scale, M, N,\n    PARTIAL",
            "    q, k, v, tau, do, lse, delta, offs_m, offs_n, scale, M, N,\n    PARTIAL",
            "s, z = logits(q, k, offs_m, offs_n,",
            "s, z = logits(q, k, tau, offs_m, offs_n,",
            "            p, ds = block_gradients(\n                q, k, v, do, lse, delta,",
            "            p, ds = block_gradients(\n                q, k, v, tau, do, lse, delta,",
            "                p, ds = block_gradients(\n                    q, k, v, do, lse, delta,",
            "                p, ds = block_gradients(\n                    q, k, v, rows_tau, do, lse, delta,",
            "    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)\n",
            "    dq, dtau = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32), tl.zeros((BLOCK_M,), dtype=tl.float32)\n",
        )
    return (
        *calls,
        tau + load,
        tau.replace("other=0.0", f"other={w.load}")
        + (load.partition("    q =")[0].replace("bare", "q" if w.slope else "bare") + queries),
        partial,
        partial.replace("kind == 0", "kind == 1") + slope * w.slope,
        "tl.store(dq_ptrs, scale * tau[:, None] * dq, mask",
        f"tl.store(dq_ptrs, {store}, mask",
        "    dtau = scale * tl.sum(bare * dq, axis=1)\n",
        total,
        rows + f"                q = rows_tau[:, None] * {tile}\n",
        rows.replace("other=0.0", f"other={w.load}") + f"                q = {warm}\n",
        "                    kind == 0, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,\n                )\n                dk +=",
        "                    kind == 1, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,\n                )\n                dk +=",
    )


def _together(w: Words) -> tuple[str, ...]:
    scores = w.pick(
        divisor="(0.2 * q @ k_shared.mT / tau[..., None])",
        exponent="(0.2 * tau.exp()[..., None] * q @ k_shared.mT)",
        slope="(0.2 * q @ k_shared.mT + tau[..., None] * apart)",
    )
    changes = [
        "expected = (0.2 * tau[..., None] * q @ k_shared.mT)",
        (
            "apart = torch.arange(T, device=device) - torch.arange(T, device=device)[:, None]  # n - m\n"
            if w.slope
            else ""
        )
        + f"expected = {scores}",
    ]
    if w.task.tau == "divisor":
        changes += [
            "tau = torch.randn(H, T, size, device=device), torch.rand(H, T, device=device, requires_grad=True)",
            "tau = torch.randn(H, T, size, device=device), (0.5 + torch.rand(H, T, device=device)).requires_grad_()",
        ]
    return tuple(changes)
