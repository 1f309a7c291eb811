"""Linear recurrences of real models, ours beside flash-linear-attention's chunked kernels."""

import functools

import torch

from benchmarks import flash_linear_attention as fla
from benchmarks import harness
from benchmarks import recurrent_attention as bench
from benchmarks.populations import population
from kernels.recurrent_attention import recurrent_attention

OPERATOR = "recurrent_attention"
MOST_BYTES = 2**30  # of q, k, v and o
PEERS_TUNED = (
    "flash-linear-attention's autotuners time all of their own configurations for 12 ms each, on the layer that is measured, "
    "and anew for every length; only what they compile for that is compiled before, for layers alike once"
)
SHARES = 3  # processes that compile a layer's configurations
EXACT_TOKENS = 16384  # the reference takes no longer sequence


def cases(half):
    """``(layer, half, models)`` of every row, with fewer sequences or heads where they would take long."""
    return population.cases(OPERATOR, half, fitted)


def sizes_of(layer):
    """B, T, H, K, V."""
    return tuple(layer[name] for name in "BTHKV")


def fitted(layer):
    """A layer with its heads halved, as they would be dealt to several GPUs, until it is small enough."""
    layer = dict(layer)
    while bench.cost("chunk", layer["gate"], *sizes_of(layer))["forward"][0] > MOST_BYTES and layer["H"] % 2 == 0:
        layer["H"] //= 2
    return layer


def describe(case):
    """A case in words, which ``--only`` is matched with."""
    layer, half, models = case
    return f"{half} {layer['gate']} " + " ".join(f"{name}{layer[name]}" for name in "BTHKV") + f" {models[0]}"


def problem(layer, peers=True):
    """``(arguments, calls)``: ours in the mode that it chooses, the peer in chunks."""
    given, calls = bench.problem("chunk", layer["gate"], sizes_of(layer), peers)
    calls["ours"] = lambda: recurrent_attention(**given)[0]
    return given, calls


def measure(case, machine, rounds):
    """The rows of one case, forward and backward."""
    layer, half, models = case
    torch.manual_seed(0)
    with population.stream():
        given, calls = problem(layer)
        leaves = tuple(bench.leaves_of(given).values())
        outputs = {name: call() for name, call in calls.items()}
        do = torch.randn_like(outputs["ours"])
        back = {
            name: functools.partial(torch.autograd.grad, o, leaves, do, retain_graph=True) for name, o in outputs.items()
        }
        gradients = {name: call() for name, call in back.items()}
        errors = errors_of(given, do, outputs, gradients)
        del gradients
        passes = {"forward": calls, "backward": back}
        times = {name: population.timed(functions, 10 * rounds) for name, functions in passes.items()}
    rows = []
    for i, (name, (ms, how)) in enumerate(times.items()):
        moved, flops = bench.cost("chunk", layer["gate"], *sizes_of(layer))[name]
        of_pass = {call: {k: population.short(e) for k, e in errors[call][i].items()} for call in calls}
        rows.append(
            {
                "kernel": OPERATOR,
                "pass": name,
                "half": half,
                "models": models,
                "kind": f"{layer['gate']} K{layer['K']} V{layer['V']}",
                "shape": layer,
                "dtype": "bfloat16",
                "timed": how["ours"],
                "explained": harness.explained(recurrent_attention, **given),
                "ours_ms": round(ms["ours"], 5),
                "bytes": moved,
                "flops": flops,
                "relative_error": worst(of_pass["ours"]),
                "errors": of_pass["ours"],
                "peers": [
                    population.peer(peer, version_of(peer), ms[peer], how[peer], worst(of_pass[peer]))
                    for peer in calls
                    if peer != "ours"
                ],
            }
        )
    return rows


def version_of(peer):
    """What a peer is part of."""
    return f"flash-linear-attention {fla.version()}"


def worst(errors):
    """The largest of some errors, ``None`` of none."""
    return max(errors.values(), default=None)


def errors_of(given, do, outputs, gradients):
    """As the operator's benchmark, on one head; of a sequence too long for it, the first outputs alone, since their
    gradients depend on all that comes later."""
    if do.shape[1] <= EXACT_TOKENS:
        return bench.errors_of(given, do, outputs, gradients, heads=1)
    first = lambda x: x.detach()[:1, :EXACT_TOKENS, :1].double() if x.ndim > 1 else x.detach()[:1].double()  # noqa: E731
    with torch.no_grad():
        o = bench.chunked_reference(**{name: first(x) for name, x in given.items()})
    return {
        name: ({"o": harness.relative_error(first(ours), o)}, {}) for name, ours in outputs.items()
    }


def launches(layer, peer):
    """What ``measure`` launches of ours, or of the peer."""
    given, calls = problem(layer, peers=peer)
    for name, call in calls.items():
        if (name != "ours") == peer:
            o = call()
            torch.autograd.grad(o, tuple(bench.leaves_of(given).values()), o.detach())


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given: the peer, which tunes itself, in several processes, of layers that it compiles
    the same for the first; then ours."""
    layers = [layer for layer, *_ in selected]
    alike = {(*(layer[name] for name in ("gate", "H", "K", "V")), layer["T"] % 16): layer for layer in reversed(layers)}
    shares = range(SHARES if fla.available() else 0)
    peers = [((layer, True), share, SHARES) for layer in reversed(alike.values()) for share in shares]
    return peers + [((layer, False), 0, 1) for layer in layers]


def line(row):
    """A row as one line of text."""
    sizes = " ".join(f"{name}{row['shape'][name]}" for name in "BTHKV")
    peers = "  ".join(f"{p['ms'] / row['ours_ms']:5.2f}x {p['name']} ({p['relative_error']})" for p in row["peers"])
    return (
        f"{row['half']:8} {row['pass']:8} {row['kind']:18} {sizes:32} {row['ours_ms']:8.4f} ms "
        f"error {row['relative_error']}  {peers}"
    )
