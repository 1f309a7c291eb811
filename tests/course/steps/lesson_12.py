"""Wrong answers to lesson 12's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def dk(value, body=""):
    return f"""def dk_reversed(dy, x, W):
    dk = torch.zeros(*x.shape, W, dtype=x.dtype, device=x.device)
    for w in range(W):
        {body or "dk[:, :, :, w] = " + value}
    return dk
"""


def seen(value):
    return f"""def seen_inside(j, w, W, cu_seqlens):
    n = torch.searchsorted(cu_seqlens, j, right=True) - 1
    return {value}
"""


def rows(load="tl.load(rows_ptr + p * N + offs_n, mask=offs_n < N, other=0.0)",
         store="tl.store(out_ptr + offs_n, acc, mask=offs_n < N)", add="acc +="):  # fmt: skip
    return f"""@triton.jit
def add_rows_kernel(rows_ptr, out_ptr, P, N, BLOCK: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for p in range(P):
        {add} {load}
    {store}
"""


WRONG = {
    "12-reversed": [
        (dk("dy * x.roll(w, 1)"), "which `roll` brings round"),
        (dk("dy * F.pad(x, (0, 0, W - 1 - w, 0))[:, : x.shape[1]]"), "lesson 10's order"),
        (dk("dy * F.pad(x, (0, 0, 0, w))[:, w:]"), "these taps look back"),
        (dk("", "dk[:, :, :, w] = F.pad(dy * x, (0, 0, w, 0))[:, : x.shape[1]]"), "dy is moved along with x"),
        (
            dk("dy * F.pad(x.flatten(0, 1), (0, 0, w, 0))[: len(x) * x.shape[1]].view_as(x)"),
            "the last inputs of sequence 0",
        ),
        (dk("dy * x"), "the gradient of k["),
    ],
    "12-end": [
        (seen("j + W - 1 - w < cu_seqlens[-1]"), "the published mistake"),
        (seen("j + W - 1 - w <= cu_seqlens[n + 1]"), "the first token of the next document"),
        (seen("j + w < cu_seqlens[n + 1]"), "not at j + w"),
        (seen("j < cu_seqlens[n + 1]"), "the time is what must stay inside"),
        (seen("j - W + 1 + w >= cu_seqlens[n]"), "the forward pass's mask"),
        (seen("True"), "it must return 9 truth values"),
        (seen("j + W - 1 - w < cu_seqlens[n]"), "X[j]'s own document"),
    ],
    "12-rows": [
        (rows("tl.load(rows_ptr + p * N + offs_n)"), "reaches outside rows_ptr"),
        (rows(store="tl.store(out_ptr + offs_n, acc)"), "reaches outside out_ptr"),
        (rows("tl.load(rows_ptr + offs_n, mask=offs_n < N, other=0.0)"), "row p begins at p * N"),
        (rows("tl.load(rows_ptr + p * BLOCK + offs_n, mask=offs_n < N, other=0.0)"), "a row has N elements"),
        (rows(add="acc ="), "only the last row is left"),
        (rows(store="tl.atomic_add(out_ptr + offs_n, acc, mask=offs_n < N)"), "an atomic addition"),
        (rows(store="tl.store(out_ptr + tl.arange(0, BLOCK), acc, mask=offs_n < N)"), "several writers"),
    ],
}
