"""Flex attention on this GPU beside torch's compiled flex_attention and SDPA: ``python -m benchmarks.flex_attention``."""

import functools
import itertools
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention as torchs_flex_attention

from benchmarks import command, harness
from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import (
    causal_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    problem,
    sliding_window_block_mask,
)
from kernels.flex_attention.reference import flex_attention_reference

SHAPES = [(4, 16, 16, 4096, 128), (2, 32, 8, 8192, 128), (4, 16, 16, 4096, 64)]  # B, Hq, Hkv, S, D
DECODING = [(32, 32, 8, 1, 8192, 128), (1, 32, 8, 1, 131072, 128)]  # B, Hq, Hkv, M, N, D
VARIANTS = ["full", "causal", "window 1024", "alibi causal", "softcap causal", "documents causal"]
DOCUMENTS = [1, 2, 3, 1, 4, 2, 2, 1]  # lengths of the eight documents, in sixteenths of the sequence
SDPA = {"cuDNN SDPA": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2 SDPA": SDPBackend.FLASH_ATTENTION}
# torch 2.11's kernel for few queries needs block pointers, which Triton 3.9 no longer has.
BLOCK_POINTERS_GONE = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)


@functools.cache
def compiled_flex_attention():
    """PyTorch's own, compiled. Not at import: asking for it reads all of the compiler."""
    return harness.compiled(torchs_flex_attention, dynamic=False)


def cases():
    """``(variant, (B, Hq, Hkv, M, N, D))`` of every measurement."""
    for B, Hq, Hkv, S, D in SHAPES:
        yield from ((variant, (B, Hq, Hkv, S, S, D)) for variant in VARIANTS)
    yield from (("decoding", shape) for shape in DECODING)


def describe(case):
    """A case in words, which ``--only`` is matched with: ``"alibi causal B4 H16 Hkv16 M4096 N4096 D128"``."""
    variant, shape = case
    return f"{variant} " + " ".join(f"{n}{size}" for n, size in zip(("B", "H", "Hkv", "M", "N", "D"), shape, strict=True))


def document_ids(S):
    """Which of eight documents each of S tokens belongs to."""
    lengths = torch.tensor(DOCUMENTS) * S // sum(DOCUMENTS)
    return torch.repeat_interleave(torch.arange(len(DOCUMENTS)), lengths).to(runtime.device)


def mods_of(variant, heads, S):
    """``(score_mod, block_mask)`` of a variant."""
    if variant in ("full", "decoding"):
        return None, None
    if variant == "window 1024":
        return None, sliding_window_block_mask(min(1024, S // 4), S)
    if variant == "documents causal":
        return None, document_block_mask(document_ids(S))
    score_mod = {"causal": None, "alibi causal": mods.alibi(heads), "softcap causal": mods.softcap(20.0)}[variant]
    return score_mod, causal_block_mask(S)


def pairs(variant, M, N):
    """How many (query, key) pairs count; half a square for a causal mask, as is customary."""
    if variant in ("full", "decoding"):
        return M * N
    if variant == "window 1024":
        window = min(1024, N // 4)
        return sum(min(m, window) + 1 for m in range(M))
    if variant == "documents causal":
        return sum((length * M // sum(DOCUMENTS)) ** 2 for length in DOCUMENTS) // 2
    return M * N // 2


def cost(variant, B, Hq, Hkv, M, N, D, element=2):
    """``{pass: (bytes, flops)}``: every input read once, every output written once; two and five matrix products."""
    queries, keys, product = element * B * Hq * M * D, element * B * Hkv * N * D, 2 * B * Hq * D * pairs(variant, M, N)
    costs = {"forward": (2 * queries + 2 * keys, 2 * product)}
    if variant != "decoding":
        costs["backward"] = (4 * queries + 4 * keys, 5 * product)
    return costs


def tensors(B, Hq, Hkv, M, N, D):
    """Random q, k, v in bf16 that require gradients."""
    make = lambda *size: torch.randn(size, dtype=torch.bfloat16, device=runtime.device).requires_grad_()  # noqa: E731
    return make(B, Hq, M, D), make(B, Hkv, N, D), make(B, Hkv, N, D)


def calls_of(variant, q, k, v, peers=True):
    """``{name: function of nothing that gives o}``; the peers that compute this variant, where they run."""
    heads, M, grouped = q.shape[1], q.shape[2], q.shape[1] != k.shape[1]
    score_mod, block_mask = mods_of(variant, heads, M)
    arguments = (q, k, v, score_mod, block_mask)
    calls = {"ours": lambda: flex_attention(*arguments, enable_gqa=grouped)}
    if peers and not runtime.interpreted:
        torch._dynamo.reset()  # after a few recompilations it would run the rest uncompiled
        if variant != "decoding" or not BLOCK_POINTERS_GONE:
            theirs = compiled_flex_attention()
            calls["torch.compile(flex_attention)"] = lambda: theirs(*arguments, enable_gqa=grouped)
        for name, backend in SDPA.items() if variant in ("full", "causal", "decoding") else ():
            calls[name] = lambda backend=backend: sdpa(backend, q, k, v, variant == "causal", grouped)
    return calls


def sdpa(backend, q, k, v, causal, grouped):
    """torch's scaled_dot_product_attention by one backend."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def errors_of(variant, q, k, v, do, outputs, gradients):
    """``{name: ({"o": error}, {"q": error, ...})}`` on the first key head of the first sequence, against float64."""
    score_mod, block_mask = mods_of(variant, q.shape[1], q.shape[2])
    G = q.shape[1] // k.shape[1]
    few = lambda x: x.detach()[:1, : G if x.shape[1] == q.shape[1] else 1]  # noqa: E731
    exact = [few(x).double().requires_grad_() for x in (q, k, v)]
    o = flex_attention_reference(*exact, score_mod, block_mask, enable_gqa=G > 1)
    wanted = torch.autograd.grad(o, exact, few(do).double()) if gradients else ()
    return {
        name: (
            {"o": harness.relative_error(few(outputs[name]), o)},
            {
                leaf: harness.relative_error(few(ours), theirs)
                for leaf, ours, theirs in zip("qkv", gradients.get(name, ()), wanted)
            },
        )
        for name in outputs
    }


def measure(case, machine, rounds):
    """The rows of one case: forward and backward; of decoding the forward pass alone."""
    variant, shape = case
    torch.manual_seed(0)
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are captured on the stream whose autograd nodes they replay
        q, k, v = tensors(*shape)
        calls = calls_of(variant, q, k, v)
        if variant == "decoding":
            calls = {name: torch.no_grad()(call) for name, call in calls.items()}
        outputs = {name: call() for name, call in calls.items()}
        do = torch.randn_like(outputs["ours"])
        passes, gradients = {"forward": calls}, {}
        if variant != "decoding":
            passes["backward"] = {
                name: lambda o=o: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
                for name, o in outputs.items()
            }
            gradients = {name: call() for name, call in passes["backward"].items()}
        errors = errors_of(variant, q, k, v, do, outputs, gradients)
        del gradients
        times = {name: harness.timed(functions, rounds) for name, functions in passes.items()}

    rows = []
    for i, (name, (ms, how)) in enumerate(times.items()):
        moved, flops = cost(variant, *shape)[name]
        short = {call: {what: float(f"{error:.3g}") for what, error in errors[call][i].items()} for call in calls}
        rows.append(
            {
                "kernel": "flex_attention",
                "pass": name,
                "shape": dict(zip(("B", "H", "Hkv", "M", "N", "D"), shape, strict=True)),
                "dtype": "bfloat16",
                "variant": variant,
                "timed": how,
                "ours_ms": round(ms["ours"], 4),
                "bytes": moved,
                "flops": flops,
                "tflop_per_s": round(flops / ms["ours"] / 1e9, 1),
                "fraction_of_copy": harness.fraction(moved, ms["ours"], machine["copy_tb_per_s"]),
                "fraction_of_matmul": harness.fraction(flops, ms["ours"], machine["matmul_tflop_per_s"]),
                **harness.beside_peers(ms, short, lambda: f"torch {torch.__version__}"),
            }
        )
    return rows


def launches(variant, shape):
    """Everything of ours that ``measure`` launches, once: what ``compile_ahead`` compiles."""
    q, k, v = tensors(*shape)
    o = calls_of(variant, q, k, v, peers=False)["ours"]()
    if variant != "decoding":
        torch.autograd.grad(o, (q, k, v), o.detach())


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given."""
    return [(case, 0, 1) for case in selected]


# What ``benchmarks.tune`` asks for: the classes to tune, the candidates, the problems, a call that uses a candidate.

TABLE = json.loads((Path(problem.__file__).parent / "configs.json").read_text())["NVIDIA H200"]
CLASSES = {kernel: list(itertools.product((64, 128), ("plain", "mod"))) for kernel in TABLE}
CHOICES = {  # values of an option worth timing; an option without any keeps the table's value
    "BLOCK_M": [64, 128],
    "BLOCK_N": [64, 128],
    "num_warps": [4, 8],
    "num_stages": [2, 3],
    ("decoding", "BLOCK_N"): [32, 64, 128],
    ("decoding", "num_stages"): [3, 4],
    ("decoding", "PROGRAMS"): [264, 528, 1056],
    ("backward_dkdv", "BLOCK_M"): [32, 64, 128],
}


def candidates(kernel):
    """Launch configurations worth timing: every choice of the options that the table has for this kernel."""
    default = next(iter(TABLE[kernel].values()))
    choices = [CHOICES.get((kernel, name), CHOICES.get(name, [value])) for name, value in default.items()]
    return [dict(zip(default, choice, strict=True)) for choice in itertools.product(*choices)]


def tuning_shapes(kernel):
    """``(B, Hq, Hkv, M, N)`` and whether a causal mask is on, of the problems that candidates are timed on."""
    if kernel == "decoding":
        return [(*shape[:-1], False) for shape in DECODING]
    return [(4, 16, 16, 4096, 4096, causal) for causal in (False, True)]


def tuned_call(kernel, shape, D, kind):
    """``(name of the class, call(options))``: the pass that launches ``kernel`` on random inputs, with these options."""
    *sizes, causal = shape
    q, k, v = tensors(*sizes, D)
    block_mask = causal_block_mask(sizes[3]) if causal else None
    score_mod = mods.softcap(20.0) if kind == "mod" else None
    table_says = problem.table_options
    do, last = torch.randn_like(q), []

    def call(options):
        if options not in last:  # plans were made of other tiles
            clear_caches()
            last[:] = [options]
        problem.table_options = lambda name, key, device: options if name == kernel else table_says(name, key, device)
        with torch.set_grad_enabled(kernel.startswith("backward")):
            o = flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True)
            if kernel.startswith("backward"):
                torch.autograd.grad(o, (q, k, v), do)
        problem.table_options = table_says

    return f"d{D} 16-bit {kind}", call


def line(row):
    """A row as one line of text."""
    peers = "  ".join(f"{p['ms'] / row['ours_ms']:5.2f}x {p['name']} ({p['relative_error']:.1e})" for p in row["peers"])
    return (f"{row['pass']:8} {row['variant']:16} {list(row['shape'].values())!s:34} {row['ours_ms']:8.3f} ms  "
            f"{row['tflop_per_s']:6.1f} TFLOP/s  error {row['relative_error']:.1e}  {peers}")  # fmt: skip


def main():
    command.main(sys.modules[__name__], "flex_attention", example="causal B4")


if __name__ == "__main__":
    main()
