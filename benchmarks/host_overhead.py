"""What an eager call costs the host, on tensors so small that the GPU waits: ``python -m benchmarks.host_overhead``.

Every operator is timed beside its peer, the two in turn, forward (with the graph recorded) and backward: torch's compiled
flex attention, torch's Conv2d, flash-linear-attention's kernels where installed, torch.compile of the same equation. All of
them are compiled side by side before that; a row is printed as soon as it is measured.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import create_block_mask as torchs_create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torchs_flex_attention

from benchmarks import ahead, harness
from benchmarks import flash_linear_attention as fla
from benchmarks.dynamic_conv import equation
from kernels import runtime
from kernels.conv_wgrad import Conv2d
from kernels.dynamic_conv import dynamic_conv
from kernels.flex_attention import create_block_mask, flex_attention
from kernels.recurrent_attention import recurrent_attention

CALLS = 50  # in a row, between two looks at the clock
TURNS = 18
T, HEADS, SIZE = 64, 2, 64  # tokens, heads and components of the attention cases: one or two chunks


TUNED = {"chunk_simple_gla": 4}  # in how many processes a peer's configurations are compiled


class Case(NamedTuple):
    """An operator, what it is called with, and who it is timed beside."""

    operator: str
    variant: str
    leaves: list[torch.Tensor]
    ours: Callable
    peers: dict[str, Callable]


def randn(*shape, dtype=torch.bfloat16):
    """Random values that need a gradient."""
    return torch.randn(shape, device=runtime.device, dtype=dtype).requires_grad_()


def decayed_product(q, k, v, g):
    """Gated linear attention in PyTorch, a product of all pairs of tokens: what one would hand to torch.compile.

    .. math:: o_t = K^{-1/2} \\sum_{s \\le t} e^{g_{s+1} + \\dots + g_t} (q_t \\cdot k_s)\\, v_s
    """
    gamma = g.float().cumsum(1).transpose(1, 2)
    between = gamma[..., :, None] - gamma[..., None, :]
    decay = torch.exp(between.masked_fill(torch.ones_like(between, dtype=torch.bool).triu(1), float("-inf")))
    scores = torch.einsum("bthk,bshk->bhts", q.float(), k.float()) * decay * q.shape[-1] ** -0.5
    return torch.einsum("bhts,bshv->bthv", scores, v.float()).to(q.dtype)


def convolution():
    """Dynamic convolution."""
    leaves = [randn(1, 32, 64), randn(1, 32, 64, 4)]
    return Case("dynamic_conv", "W 4", leaves, dynamic_conv, {"torch.compile": harness.compiled(equation)})


def recurrence(mode):
    """Recurrent attention with one gate a token, in one of its modes."""
    q, k, v = (randn(1, T, HEADS, SIZE) for _ in range(3))
    g = torch.nn.functional.logsigmoid(torch.randn(1, T, HEADS, device=runtime.device)).requires_grad_()
    peers = {"torch.compile": harness.compiled(decayed_product)}
    if fla.available():
        name = "fused_recurrent_simple_gla" if mode == "recurrent" else "chunk_simple_gla"
        peers[name] = lambda q, k, v, g: fla.function(name)(q, k, v, g=g)[0]
    ours = lambda q, k, v, g: recurrent_attention(q, k, v, g=g, mode=mode)[0]  # noqa: E731
    return Case("recurrent_attention", mode, [q, k, v, g], ours, peers)


def attention(masked):
    """Flex attention, plain or with a captured bias and a causal mask."""
    q, k, v = (randn(1, HEADS, 128, SIZE) for _ in range(3))
    theirs = harness.compiled(torchs_flex_attention)
    if not masked:
        return Case("flex_attention", "plain", [q, k, v], flex_attention, {"compiled flex_attention": theirs})
    slopes = torch.rand(HEADS, device=runtime.device)
    bias = lambda score, b, h, m, n: score + slopes[h] * (n - m)  # noqa: E731
    causal = lambda b, h, m, n: m >= n  # noqa: E731
    mine = create_block_mask(causal, None, None, 128, 128, device=runtime.device)
    other = torchs_create_block_mask(causal, None, None, 128, 128, device=runtime.device.type)
    ours = functools.partial(flex_attention, score_mod=bias, block_mask=mine)
    peer = functools.partial(theirs, score_mod=bias, block_mask=other)
    return Case("flex_attention", "captured bias, causal", [q, k, v], ours, {"compiled flex_attention": peer})


def layer():
    """A convolution layer; both call the same parameters."""
    ours = Conv2d(16, 16, 3, padding=1).to(runtime.device, torch.bfloat16, memory_format=torch.channels_last)
    theirs = torch.nn.Conv2d(16, 16, 3, padding=1)
    theirs.weight, theirs.bias = ours.weight, ours.bias
    x = randn(1, 16, 8, 8).detach().to(memory_format=torch.channels_last).requires_grad_()
    leaves = [x, ours.weight, ours.bias]
    return Case("Conv2d", "3 x 3", leaves, lambda x, *_: ours(x), {"torch.nn.Conv2d": lambda x, *_: theirs(x)})


CASES = {
    "dynamic_conv": convolution,
    "recurrent_attention recurrent": functools.partial(recurrence, "recurrent"),
    "recurrent_attention chunk": functools.partial(recurrence, "chunk"),
    "flex_attention plain": functools.partial(attention, False),
    "flex_attention captured": functools.partial(attention, True),
    "Conv2d": layer,
}


def passes(call, leaves):
    """``{"forward": a call with its graph, "backward": one of the gradients of what it gave}``."""
    out = call(*leaves)
    gradient = torch.randn_like(out)
    return {
        "forward": lambda: call(*leaves),
        "backward": lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True),
    }


def microseconds(functions):
    """``{name: (median, least)}`` host time of each function in µs: they take turns, CALLS in a row, from an idle GPU on.
    What other programs take of the host's time is in the median, and hardly in the least."""
    times = {name: [] for name in functions}
    for turn in range(TURNS + 1):  # the first is warm-up
        for name, function in functions.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                function()
            if turn:
                times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return {name: (round(statistics.median(of), 1), round(min(of), 1)) for name, of in times.items()}


def activities(functions):
    """``{name: how many kernels, copies and fills a call has the GPU do}``, of all functions in one profile: to begin one
    takes seconds. An error function's inverse, which nobody else asks for, stands between them."""
    from torch.profiler import ProfilerActivity, profile

    mark = torch.zeros(1, device=runtime.device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for function in functions.values():
            function()
            torch.special.erfinv(mark, out=mark)
        torch.cuda.synchronize()
    on_gpu = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    counts = [0]
    for event in sorted(on_gpu, key=lambda event: event.time_range.start):
        if "erfinv" in event.name:
            counts.append(0)
        else:
            counts[-1] += 1
    return dict(zip(functions, counts, strict=False))


def measure(case):
    """The rows of a case, one a pass, as they are measured."""
    calls = {"ours": case.ours, **case.peers}
    made = {name: passes(call, case.leaves) for name, call in calls.items()}
    for which in ("forward", "backward"):
        functions = {name: of[which] for name, of in made.items()}
        for function in functions.values():  # compiled, and its plans made
            function(), function()
        us, done = microseconds(functions), activities(functions)
        yield {
            "operator": case.operator,
            "variant": case.variant,
            "pass": which,
            "ours_us": us["ours"][0],
            "ours_least_us": us["ours"][1],
            "activities": done.get("ours"),
            "peers": [
                {
                    "name": name,
                    "version": fla.version() if "gla" in name else torch.__version__,
                    "us": us[name][0],
                    "least_us": us[name][1],
                    "activities": done.get(name),
                }
                for name in case.peers
            ],
        }


def launches(name, which):
    """What ``measure`` compiles of a case's call, ours or a peer."""
    case = CASES[name]()
    call = {"ours": case.ours, **case.peers}[which]
    out = call(*case.leaves)
    torch.autograd.grad(out, case.leaves, torch.randn_like(out))


def compile_jobs(names):
    """What ``ahead.compile_ahead`` is given: peers that tune themselves in several processes, torch's, then ours."""
    jobs = []
    for name in names:
        for which in ("ours", *CASES[name]().peers):
            shares = TUNED.get(which, 1)
            jobs += [((name, which), share, shares) for share in range(shares)]
    return sorted(jobs, key=lambda job: (-job[2], job[0][1] == "ours"))


def line(row):
    """A row as one line of text: medians, and behind a slash the least."""
    peers = "  ".join(
        f"{peer['us']:7.1f} / {peer['least_us']:6.1f} us {peer['name']} ({peer['activities']})" for peer in row["peers"]
    )
    what = f"{row['operator']} {row['variant']}"
    ours = f"{row['ours_us']:7.1f} / {row['ours_least_us']:6.1f} us ours ({row['activities']})"
    return f"{what:38} {row['pass']:8} {ours}  {peers}"


def renewed(record, newer):
    """``harness.renewed`` of this benchmark's records."""
    return harness.renewed(record, newer, lambda row: (row["operator"], row["variant"], row["pass"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help="folder for host_overhead.json")
    parser.add_argument("--only", default="", help="run only the cases whose name contains this, as 'Conv2d'")
    parser.add_argument("--renew", action="store_true", help="measure nothing: rows in --out replace the committed ones")
    given = parser.parse_args()
    if given.renew:
        record, newer = harness.read("host_overhead"), harness.read("host_overhead", given.out)
        return harness.write("host_overhead", renewed(record, newer))
    harness.require_gpu()
    names = [name for name in CASES if given.only in name]
    ahead.compile_ahead("benchmarks.host_overhead", compile_jobs(names))
    record = {"machine": harness.machine(), "calls": CALLS, "turns": TURNS, "rows": []}
    for name in names:
        for row in measure(CASES[name]()):
            record["rows"].append(row)
            print(line(row), flush=True)
            path = harness.write("host_overhead", record, given.out)
    print(record["machine"], path)


if __name__ == "__main__":
    main()
