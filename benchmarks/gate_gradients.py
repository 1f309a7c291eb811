"""How far gate gradients are from float64 as the decay grows stronger: ``python -m benchmarks.gate_gradients``.

Three ways to compute them in fp32: ours; the running sum of q . dq - k . dk, which most implementations use, written here;
and flash-linear-attention, where there is a GPU. Errors are root mean square over root mean square. They cover the gates of
-15 and less, of which the running sum must find a gradient of size e^g as a difference of numbers of size one, or every gate
where none is as strong.
"""

import argparse
import math

import torch

from benchmarks import ahead, harness
from benchmarks import flash_linear_attention as fla
from kernels import runtime
from kernels.recurrent_attention import recurrent_attention
from kernels.recurrent_attention.reference import recurrent_attention_reference

B, T, H, K, V = (1, 48, 1, 32, 32) if runtime.interpreted else (1, 256, 2, 32, 32)
CONSTANT = [0, -1, -2, -5, -10, -15, -20, -30]
MIXED = ["one in 16 at -20", "uniform(-25, 0)", "one in 16 at -inf"]
STRONG = -15
METHODS = {
    "ours, recurrent": "recurrent",
    "ours, chunk": "chunk",
    "running sum": None,
    "FLA, recurrent": {"g": "fused_recurrent_simple_gla", "gk": "fused_recurrent_gla"},
    "FLA, chunk": {"g": "chunk_simple_gla", "gk": "chunk_gla"},
}


def gates_of(name, size):
    """Gates [*size] in fp32: a constant, or one of ``MIXED``; every 16th is one along time."""
    if name not in MIXED:
        return torch.full(size, float(name), device=runtime.device)
    if name.startswith("uniform"):
        return -25 * torch.rand(size, device=runtime.device)
    gates = torch.full(size, -0.05, device=runtime.device)
    gates[:, 7::16] = float(name.split()[-1])
    return gates


def inputs_of(gate, name):
    """``(arguments in fp32, do, dht)``: a nonzero initial state and gradient of the final state among them."""
    make = lambda *size: torch.randn(size, device=runtime.device)  # noqa: E731
    given = {
        "q": make(B, T, H, K),
        "k": make(B, T, H, K),
        "v": make(B, T, H, V),
        gate: gates_of(name, (B, T, H) if gate == "g" else (B, T, H, K)),
        "initial_state": make(B, H, K, V),
    }
    return given, make(B, T, H, V), make(B, H, K, V)


def gradients(function, given, do, dht, names):
    """Gradients of <o, do> + <final state, dht> to the arguments in ``names``."""
    given = {name: x.detach().requires_grad_() for name, x in given.items()}
    o, final_state = function(**given, output_final_state=True)
    return torch.autograd.grad((o, final_state), [given[name] for name in names], (do, dht))


def running_sum(gate, given, do, dht):
    """The gate's gradient as dg_t = dg_{t+1} + q_t . dq_t - k_t . dk_t, from <S_T, dS_T> at the end."""
    dq, dk = gradients(recurrent_attention_reference, given, do, dht, ("q", "k"))
    _, S = recurrent_attention_reference(**given, output_final_state=True)
    change = given["q"] * dq - given["k"] * dk
    change[:, -1] += (S * dht).sum(-1)
    change = change.flip(1).cumsum(1).flip(1)
    return change.sum(-1) if gate == "g" else change


def gradient(method, gate, given, do, dht):
    """The gate's gradient by one of ``METHODS``, or None where that method cannot run."""
    how = METHODS[method]
    if how is None:
        return running_sum(gate, given, do, dht)
    if isinstance(how, str):
        ours = lambda **given: recurrent_attention(**given, mode=how)  # noqa: E731
        return gradients(ours, given, do, dht, [gate])[0]
    if not fla.available():
        return None
    named = "g" if how[gate] == "chunk_gla" else gate
    renamed = {named if name == gate else name: x for name, x in given.items()}
    return gradients(fla.function(how[gate]), renamed, do, dht, [named])[0]


def row_of(gate, name):
    """One line of the table: the error of every method on one kind of gate."""
    torch.manual_seed(0)
    given, do, dht = inputs_of(gate, name)
    double = lambda x: x.double()  # noqa: E731
    exact = gradients(
        recurrent_attention_reference, {n: double(x) for n, x in given.items()}, double(do), double(dht), [gate]
    )[0]
    gates = given[gate]
    resets = gates == -math.inf
    over = ~resets & (gates <= STRONG)
    if not over.any():
        over = ~resets
    row = {"gate": gate, "gates": str(name), "errors": {}}
    if resets.any():
        row["largest at -inf"] = {}
    for method in METHODS:
        found = gradient(method, gate, given, do, dht)
        if found is None:
            continue
        row["errors"][method] = plain(harness.relative_error(found[over], exact[over]))
        if resets.any():  # exactly 0 is right
            row["largest at -inf"][method] = plain(found[resets].abs().max().item())
    return row


def launches(method, gate):
    """Everything ``row_of`` launches for a method, once: what ``compile_ahead`` compiles."""
    gradient(method, gate, *inputs_of(gate, -1))


def plain(number):
    """Three digits, or None for what is no number."""
    return float(f"{number:.3g}") if math.isfinite(number) else None


def lines(rows):
    """The table as text: a column a method, ``nan`` where the result is no number."""
    yield f"{'':35}" + "".join(f"{method:>17}" for method in METHODS)
    for row in rows:
        for what, values in (("", row["errors"]), (", largest there", row.get("largest at -inf"))):
            if values:
                shown = ["nan" if values.get(m, 0) is None else f"{values.get(m, 0):.1e}" for m in METHODS]
                shown = [cell if m in values else "needs a GPU" for m, cell in zip(METHODS, shown, strict=True)]
                yield f"{row['gate']:3}{row['gates'] + what:32}" + "".join(f"{cell:>17}" for cell in shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", nargs="?", const=harness.RESULTS, help="write gate_gradients.json too, into this folder; needs a GPU"
    )
    given = parser.parse_args()
    if given.out:
        harness.require_gpu()
    if fla.available():
        peers = [(method, gate) for method, how in METHODS.items() if isinstance(how, dict) for gate in ("g", "gk")]
        ahead.compile_ahead("benchmarks.gate_gradients", [(peer, share, 4) for peer in peers for share in range(4)])
    cases = [(gate, name) for gate in ("g", "gk") for name in (*CONSTANT, *MIXED)]
    rows = [row_of(*case) for case in harness.progress(cases, desc="gate_gradients")]
    print(runtime.describe())
    print(f"Relative error of the gates' gradient against float64, fp32, T = {T}, K = V = {K}, with states:")
    print(*lines(rows), sep="\n")
    if given.out:
        size = dict(zip("BTHKV", (B, T, H, K, V), strict=True))
        peer = f"flash-linear-attention {fla.version()}" if fla.available() else None
        record = {"machine": harness.machine(), "peer": peer, "shape": size, "dtype": "float32", "rows": rows}
        print(harness.write("gate_gradients", record, given.out))


if __name__ == "__main__":
    main()
