"""Recurrent attention on this GPU beside flash-linear-attention: ``python -m benchmarks.recurrent_attention``."""

import itertools
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks import command, harness
from benchmarks import flash_linear_attention as fla
from benchmarks.tune import launched_with
from kernels import runtime
from kernels.recurrent_attention import operator, recurrent_attention, recurrent_attention_step
from kernels.recurrent_attention.chunk import launches as chunk
from kernels.recurrent_attention.problem import Gates
from kernels.recurrent_attention.reference import recurrent_attention_step_reference

SHAPES = [(8, 2048, 16), (1, 32768, 16), (2, 8192, 16)]  # B, T, H
SIZES = [128, 64]  # K = V
STEP = (1024, 1, 16)
GATE_NORMALIZER = 16  # gates are logsigmoid(x) / 16, as a gated linear attention layer makes them
CHUNK = 64  # the chunk that chunk mode's arithmetic is counted for
PEERS = {  # (mode, gate): flash-linear-attention's function, what it calls the gate, and what else it is told
    ("recurrent", "g"): ("fused_recurrent_simple_gla", {}, {}),
    ("recurrent", "gk"): ("fused_recurrent_gla", {}, {}),
    ("chunk", "none"): ("chunk_linear_attn", {}, {"normalize": False}),
    ("chunk", "g_gamma"): ("chunk_simple_gla", {}, {}),
    ("chunk", "g"): ("chunk_simple_gla", {}, {}),
    ("chunk", "gk"): ("chunk_gla", {"gk": "g"}, {}),
    ("step", "g"): ("fused_recurrent_simple_gla", {}, {}),
    ("step", "gk"): ("fused_recurrent_gla", {}, {}),
}


def cases():
    """``(mode, gate, (B, T, H, K, V))`` of every measurement, what matters most first."""
    for size in SIZES:
        for shape in SHAPES:
            yield from ((mode, gate, (*shape, size, size)) for mode, gate in PEERS if mode != "step")
    yield from ((mode, gate, (*STEP, 128, 128)) for mode, gate in PEERS if mode == "step")


def describe(case):
    """A case in words, which ``--only`` is matched with: ``"chunk gk B8 T2048 H16 K128 V128"``."""
    mode, gate, shape = case
    return f"{mode} {gate} " + " ".join(f"{name}{size}" for name, size in zip("BTHKV", shape, strict=True))


def arguments(gate, B, T, H, K, V):
    """Random q, k, v in bf16 and gates in fp32, by name, all requiring gradients but the constant g_gamma."""
    make = lambda *size: torch.randn(size, device=runtime.device)  # noqa: E731
    given = {name: make(B, T, H, size).bfloat16().requires_grad_() for name, size in zip("qkv", (K, K, V), strict=True)}
    if gate == "g_gamma":  # the decays of a retentive network
        heads = torch.arange(H, device=runtime.device, dtype=torch.float64)
        given["g_gamma"] = torch.log1p(-(2.0 ** (-5 - heads))).float()
    elif gate != "none":
        size = (B, T, H) if gate == "g" else (B, T, H, K)
        given[gate] = (F.logsigmoid(make(*size)) / GATE_NORMALIZER).requires_grad_()
    return given


def problem(mode, gate, shape, peers=True):
    """``(arguments, calls)`` of a case: ours and, where it is installed, the peer, as functions of nothing that give o.

    Of the steps, ours updates the state among the arguments, while the peer reads it and writes a new one.
    """
    given = peer_given = arguments(gate, *shape)
    if mode == "step":
        B, _, H, K, V = shape
        state = torch.randn(B, H, K, V, device=runtime.device)
        peer_given = {name: x.detach() for name, x in given.items()}
        given = {name: x[:, 0] for name, x in peer_given.items()} | {"state": state}
        peer_given |= {"initial_state": state, "output_final_state": True}
        calls = {"ours": lambda: recurrent_attention_step(**given)}
    else:
        calls = {"ours": lambda: recurrent_attention(**given, mode=mode)[0]}
    if peers and fla.available():
        name, renamed, more = PEERS[mode, gate]
        peer = fla.function(name)
        peer_given = {renamed.get(argument, argument): x for argument, x in peer_given.items()} | more
        calls[name] = lambda: peer(**peer_given)[0]
    return given, calls


def leaves_of(given):
    """The arguments that gradients are taken for, by name."""
    return {name: x for name, x in given.items() if x.requires_grad}


def cost(mode, gate, B, T, H, K, V, element=2):
    """``{pass: (bytes, flops)}``: every input read once and every output written once; the arithmetic of the mode."""
    tokens = B * T * H
    gates = {"none": 0, "g_gamma": 4 * H, "g": 4 * tokens, "gk": 4 * tokens * K}[gate]
    grads = 0 if gate == "g_gamma" else gates
    read = element * tokens * (2 * K + 2 * V)  # q, k, v and o, or its gradient
    if mode == "step":
        return {"forward": (read + gates + 2 * 4 * tokens * K * V, 5 * K * V * tokens)}
    if mode == "recurrent":
        forward, backward = 5 * K * V, 12 * K * V
    else:  # the states and what they give; scores and what they give
        forward = 4 * K * V + 2 * CHUNK * (K + V)
        backward = 10 * K * V + 2 * CHUNK * (3 * K + 2 * V)
    return {
        "forward": (read + gates, forward * tokens),
        "backward": (read + gates + element * tokens * (2 * K + V) + grads, backward * tokens),
    }


def chunked_reference(q, k, v, *, g=None, g_gamma=None, gk=None, C=32):
    """The recurrence in q's dtype, differentiable, from matrix products over C tokens: what float64 on a GPU can afford.

    With Gamma the log-decays summed within a chunk, only differences Gamma_t - Gamma_s with s <= t are exponentiated.
    """
    B, T, H, K = q.shape
    gates = q.new_zeros(B, T, H, 1)
    for gate in (g, g_gamma, gk):
        if gate is not None:
            gates = gates + (gate[..., None] if gate.ndim != 4 else gate)
    pad = -T % C
    cut = lambda x: F.pad(x, (0, 0, 0, 0, 0, pad)).unflatten(1, (-1, C)).permute(0, 3, 1, 2, 4)  # noqa: E731
    q, k, v, gates = map(cut, (q, k, v, gates))  # [B, H, chunks, C, size]

    gamma = gates.cumsum(-2)
    last = gamma[..., -1:, :]
    later = torch.ones(C, C, dtype=torch.bool, device=q.device).triu(1)[..., None]
    decay = (gamma[..., :, None, :] - gamma[..., None, :, :]).masked_fill(later, -math.inf).exp()  # [..., t, s, 1 or K]
    if decay.shape[-1] == 1:
        scores = (q @ k.mT) * decay[..., 0]
    else:
        scores = (q[..., :, None, :] * k[..., None, :, :] * decay).sum(-1)
    added = (k * (last - gamma).exp()).mT @ v
    kept = last.exp().mT
    S = torch.zeros_like(added[:, :, 0])
    entering = []
    for n in range(added.shape[2]):
        entering.append(S)
        S = kept[:, :, n] * S + added[:, :, n]
    o = K**-0.5 * ((q * gamma.exp()) @ torch.stack(entering, 2) + scores @ v)
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :T]


def errors_of(given, do, outputs, gradients, heads=2):
    """``{name: ({"o": error}, {"q": error, ...})}`` on the first heads of the first sequence, against float64."""
    few = lambda x: x.detach()[:1, :, :heads] if x.ndim > 1 else x.detach()[:heads]  # noqa: E731
    exact = {name: few(x).double().requires_grad_(x.requires_grad) for name, x in given.items()}
    leaves = leaves_of(exact)
    o = chunked_reference(**exact)
    wanted = torch.autograd.grad(o, tuple(leaves.values()), few(do).double())
    return {
        name: (
            {"o": harness.relative_error(few(outputs[name]), o)},
            {
                leaf: harness.relative_error(few(ours), theirs)
                for leaf, ours, theirs in zip(leaves, gradients[name], wanted, strict=True)
            },
        )
        for name in outputs
    }


def step_errors_of(given, calls, few=4):
    """``{name: ({"o": error, ...},)}`` on a few sequences against float64; of ours, which updates it, the state too."""
    o, state = recurrent_attention_step_reference(**{name: x[:few].double() for name, x in given.items()})
    errors = {}
    for name in sorted(calls, key="ours".__eq__):  # ours last: the others read the state that it updates
        errors[name] = ({"o": harness.relative_error(calls[name]().view_as(given["v"])[:few], o)},)
    errors["ours"][0]["state"] = harness.relative_error(given["state"][:few], state)
    return errors


def measure(case, machine, rounds):
    """The rows of one case: forward and backward, or the step."""
    mode, gate, shape = case
    torch.manual_seed(0)
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are captured on the stream whose autograd nodes they replay
        given, calls = problem(mode, gate, shape)
        leaves = tuple(leaves_of(given).values())
        if mode == "step":
            errors = step_errors_of(given, calls)
            passes = {"forward": calls}
        else:
            outputs = {name: call() for name, call in calls.items()}
            do = torch.randn_like(outputs["ours"])
            backward = {
                name: lambda o=o: torch.autograd.grad(o, leaves, do, retain_graph=True) for name, o in outputs.items()
            }
            errors = errors_of(given, do, outputs, {name: call() for name, call in backward.items()})
            passes = {"forward": calls, "backward": backward}
        times = {name: harness.timed(functions, rounds) for name, functions in passes.items()}

    rows = []
    for i, (name, (ms, how)) in enumerate(times.items()):
        moved, flops = cost(mode, gate, *shape)[name]
        short = {call: {what: float(f"{error:.3g}") for what, error in errors[call][i].items()} for call in calls}
        rows.append(
            {
                "kernel": "recurrent_attention",
                "pass": name,
                "shape": dict(zip("BTHKV", shape, strict=True)),
                "dtype": "bfloat16",
                "variant": f"{mode} {gate}",
                "timed": how,
                "ours_ms": round(ms["ours"], 4),
                "bytes": moved,
                "flops": flops,
                "fraction_of_copy": harness.fraction(moved, ms["ours"], machine["copy_tb_per_s"]),
                **harness.beside_peers(ms, short, lambda: f"flash-linear-attention {fla.version()}"),
            }
        )
    return rows


def launches(mode, gate, shapes):
    """Everything that ``measure`` launches on these shapes, once: what ``compile_ahead`` compiles."""
    for shape in shapes:
        given, calls = problem(mode, gate, shape)
        for call in calls.values():
            o = call()
            if mode != "step":
                torch.autograd.grad(o, tuple(leaves_of(given).values()), o.detach())


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given: the shapes of a kind together, four processes for a peer that tunes itself."""
    kinds = {}
    for mode, gate, shape in selected:
        kinds.setdefault((mode, gate, shape[3:]), []).append(shape)
    return [
        ((mode, gate, shapes), share, shares)
        for (mode, gate, _), shapes in sorted(kinds.items(), reverse=True)
        for shares in [4 if mode == "chunk" else 1]
        for share in range(shares)
    ]


# What ``benchmarks.tune`` asks for: the classes to tune, the candidates, the problems, a call that uses a candidate.

TABLE = json.loads((Path(operator.__file__).parent / "configs.json").read_text())["any GPU"]
CLASSES = {kernel: [(size,) for size in SIZES] for kernel in TABLE}
del CLASSES["chunk_stored_outputs"]  # not launched for these sizes, whose states fit into registers
CHOICES = {  # values of an option worth timing; an option without any keeps the table's value
    "BV": [8, 16, 32, 64],
    "C": [16, 32],
    "EVERY": [4, 8],
    "BLOCK_K": [32, 64, 128],
    "BLOCK_V": [16, 32, 64, 128],
    "STAGES": [1, 2, 3],
    "num_stages": [1, 2, 3],
    "num_warps": [4, 8],
    ("forward", "num_warps"): [1, 2, 4],
    ("step", "num_warps"): [1, 2, 4, 8],
    ("backward", "BV"): [16, 32, 64],
    ("backward", "EVERY"): [4],
    ("backward", "C"): [16],
    ("chunk", "C"): [16, 32, 64, 128],
    ("chunk", "runs"): [64, 128, 256, 528],
}
ONLY_GK = ["chunk_decay", "chunk_scores", "chunk_inside"]  # kernels that a call without gk does not launch


def candidates(kernel):
    """Launch configurations worth timing: every choice of the options that the table has for this kernel."""
    default = TABLE[kernel]["default"]
    choices = [CHOICES.get((kernel, name), CHOICES.get(name, [value])) for name, value in default.items()]
    return [dict(zip(default, choice, strict=True)) for choice in itertools.product(*choices)]


def tuning_shapes(kernel):
    """``(B, T, H, gate)`` of the problems that candidates are timed on: many short sequences, and one long."""
    if kernel == "step":
        return [(*STEP, gate) for gate in ("g", "gk")]
    gates = ["gk"] if kernel in ONLY_GK else ["none", "g", "gk"] if kernel.startswith("chunk") else ["g", "gk"]
    return [(*shape, gate) for shape in SHAPES[:2] for gate in gates]


def tuned_call(kernel, shape, size):
    """``(name of the class, call(options))``: run ``kernel`` on random inputs with the given launch configuration.

    What is timed is the recurrence's pass that launches the kernel, or both passes of the chunked form.
    """
    *shape, gate = shape
    mode = "step" if kernel == "step" else "chunk" if kernel.startswith("chunk") else "recurrent"
    given, calls = problem(mode, gate, (*shape, size, size), peers=False)
    q, k, v = (given[name] for name in "qkv")
    passes = chunk if mode == "chunk" else operator
    tensors = q, k, v, *map(given.get, Gates._fields[: 3 if mode == "chunk" else 4])
    numbers = size**-0.5, False, False
    needs = [*(tensor is not None for tensor in tensors), False]
    do = torch.randn_like(v)

    def call(options):
        with launched_with(kernel, options):
            if mode == "step":
                calls["ours"]()
                return
            scores = ()
            if mode == "chunk" or kernel == "forward":
                _, _, *scores = passes.forward(*tensors, None, None, *numbers)
            if mode == "chunk" or kernel != "forward":
                passes.backward(do, None, *tensors, None, None, *scores, *numbers, needs)

    size_class = (chunk if mode == "chunk" else operator).size_class(size, q.dtype)
    return size_class, torch.no_grad()(call)


def line(row):
    """A row as one line of text."""
    peers = "  ".join(f"{p['ms'] / row['ours_ms']:5.2f}x {p['name']} ({p['relative_error']:.1e})" for p in row["peers"])
    return (f"{row['pass']:8} {row['variant']:13} {list(row['shape'].values())!s:26} {row['ours_ms']:8.3f} ms  "
            f"{row['fraction_of_copy']:.3f} of copy  error {row['relative_error']:.1e}  {peers}")  # fmt: skip


def main():
    command.main(sys.modules[__name__], "recurrent_attention", example="chunk g B8")


if __name__ == "__main__":
    main()
