"""Attention layers of real models, ours beside torch's compiled flex_attention, cuDNN's and FlashAttention-4's."""

import functools
import importlib.util

import torch
from torch.nn.attention import SDPBackend

from benchmarks import flex_attention as bench
from benchmarks import harness
from benchmarks.populations import population
from kernels import runtime
from kernels.flex_attention import (
    causal_block_mask,
    create_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)

OPERATOR = "flex_attention"
TFLOP_S = 500e12
MOST_S = 1.5e-3  # of a forward pass, by a guess
LEAST_HEADS = 4
IN_FLASH_ATTENTION = ("full", "causal", "decoding", "window", "local")  # what its arguments can say, softcap too
TRIES = 2  # of a peer that has never run and fails in the same words; then it is not asked again
CHUNK, CHUNKS = 512, 64  # queries that the reference takes at once, and how many times
MORE = ("window", "softcap", "prefix", "kernel", "chunk", "span", "tokens")  # what else tells a variant's layers apart


def cases(half):
    """``(layer, half, models)`` of every row, with fewer sequences or heads where it would take long."""
    return population.cases(OPERATOR, half, fitted)


def sizes_of(layer):
    """B, H, Hkv, M, N, D, Dv: the values' heads are of D, too, where nothing else is said."""
    return *(layer[name] for name in ("B", "H", "Hkv", "M", "N", "D")), layer.get("Dv", layer["D"])


def lengths_of(layer):
    """Of the documents that a layer's sequence is packed of."""
    return layer.get("lengths") or [length * layer["M"] // sum(bench.DOCUMENTS) for length in bench.DOCUMENTS]


def pairs(layer):
    """Pairs of a query and a key that count; half a square for a causal mask, as is customary."""
    M, N, variant = layer["M"], layer["N"], layer["variant"]
    if variant in ("full", "bias", "decoding"):
        return M * N
    if variant in ("local", "natten"):
        return M * min(N, 2 * layer["window"] + 1 if variant == "local" else layer["kernel"] ** 2)
    if variant == "global":
        return M * (2 * layer["window"] + 1) + 2 * layer["tokens"] * (N - 2 * layer["window"] - 1)
    if variant == "window":
        return sum(min(m, layer["window"]) + 1 for m in range(M))
    if variant == "documents":
        return sum(length**2 for length in lengths_of(layer)) // 2
    if variant == "chunks":
        return M * layer["chunk"] // 2
    if variant == "spans":
        return M * M // 2 + M * layer["span"] // 4
    return M * M // 2 + layer.get("prefix", 0) ** 2 // 2


def flops(layer):
    """Of the forward pass: two products over the pairs that count."""
    B, H, *_, D, Dv = sizes_of(layer)
    return 2 * B * H * (D + Dv) * pairs(layer)


def fitted(layer):
    """A layer with its batch halved, then its heads, as they would be dealt to several GPUs, until it is short enough."""
    layer = dict(layer)
    while flops(layer) / TFLOP_S > MOST_S and layer["B"] > 1:
        layer["B"] //= 2
    while flops(layer) / TFLOP_S > MOST_S and layer["H"] % 2 == 0 and layer["H"] > LEAST_HEADS:
        layer["H"] //= 2
        layer["Hkv"] = max(1, layer["Hkv"] // 2)
    return layer


def describe(case):
    """A case in words, which ``--only`` is matched with."""
    layer, half, models = case
    more = "".join(f" {name} {layer[name]}" for name in MORE if name in layer)
    more += f" {len(layer['lengths'])} lengths" if "lengths" in layer else ""
    sizes = " ".join(f"{name}{layer[name]}" for name in ("B", "H", "Hkv", "M", "N", "D", "Dv") if name in layer)
    return f"{half} {layer['variant']}{more} {sizes} {models[0]}"


def local(window):
    """A window to either side."""

    def inside(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() <= window

    return inside


def image_spans(span):
    """Of every second ``span`` tokens, which are an image's, each sees all of its image; other than that causal."""

    def of_one_image(b, h, q_idx, kv_idx):
        return (q_idx // span == kv_idx // span) & (q_idx // span % 2 == 1)

    return mods.or_masks(mods.causal, of_one_image)


def mods_of(layer):
    """``(score_mod, block_mask)`` of a layer."""
    M, N, variant = layer["M"], layer["N"], layer["variant"]
    made = functools.partial(create_block_mask, B=None, H=None, Q_LEN=M, KV_LEN=N, device=runtime.device)
    tokens = torch.arange(M, device=runtime.device)
    no_mask = lambda: None  # noqa: E731
    block_mask = {
        "full": no_mask,
        "bias": no_mask,
        "causal": lambda: causal_block_mask(M),
        "alibi": lambda: causal_block_mask(M),
        "decoding": lambda: causal_block_mask(M, N, offset=N - M) if M > 1 else None,
        "window": lambda: sliding_window_block_mask(layer["window"], M),
        "documents": lambda: document_block_mask(document_ids(layer)),
        "chunks": lambda: document_block_mask(tokens // layer["chunk"]),
        "prefix": lambda: made(mods.prefix_causal(layer["prefix"])),
        "spans": lambda: made(image_spans(layer["span"])),
        "local": lambda: made(local(layer["window"])),
        "global": lambda: made(mods.global_and_window(tokens < layer["tokens"], layer["window"])),
        "natten": lambda: made(mods.natten(layer["width"], M // layer["width"], layer["kernel"])),
    }[variant]()
    if variant == "alibi":
        return mods.alibi(layer["H"]), block_mask
    if variant == "bias":
        return mods.relative_table(table_of(layer)), block_mask
    return mods.softcap(layer["softcap"]) if "softcap" in layer else None, block_mask


def document_ids(layer):
    """Which document each token belongs to."""
    lengths = torch.tensor(lengths_of(layer), device=runtime.device)
    return torch.repeat_interleave(torch.arange(len(lengths), device=runtime.device), lengths)


def table_of(layer):
    """A bias for each head and distance, the same at every call."""
    shape = layer["H"], 2 * layer["N"] - 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(runtime.device)


def trained(layer):
    """Whether there is a backward pass: not of few queries behind a cache."""
    return layer["variant"] != "decoding"


def tensors_of(layer):
    """Random q, k, v in bf16 that require gradients, if a backward pass comes."""
    B, H, Hkv, M, N, D, Dv = sizes_of(layer)
    shapes = (B, H, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv)
    make = functools.partial(torch.randn, dtype=torch.bfloat16, device=runtime.device, requires_grad=trained(layer))
    return [make(shape) for shape in shapes]


def ours(layer, q, k, v):
    """Our call, a function of nothing."""
    score_mod, block_mask = mods_of(layer)
    return lambda: flex_attention(q, k, v, score_mod, block_mask, enable_gqa=q.shape[1] != k.shape[1])


def compiled(layer, q, k, v):
    """torch's compiled flex_attention, a function of nothing."""
    score_mod, block_mask = mods_of(layer)
    torch._dynamo.reset()  # after a few recompilations it would run the rest uncompiled
    grouped = q.shape[1] != k.shape[1]
    theirs = bench.compiled_flex_attention()
    return lambda: theirs(q, k, v, score_mod, block_mask, enable_gqa=grouped)


def flash_attention_4(layer, q, k, v):
    """FlashAttention-4's CuTe kernel, a function of nothing, on tensors laid out as it wants them: [B, S, H, D]."""
    from flash_attn.cute import flash_attn_func

    variant, window = layer["variant"], layer.get("window")
    sides = {"window": (window, 0), "local": (window, window)}.get(variant, (None, None))  # keys before and after a query
    options = {"causal": variant in ("causal", "decoding"), "window_size": sides, "softcap": layer.get("softcap", 0.0)}

    def call():
        o = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), **options)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return call


def peers_of(layer, q, k, v):
    """``{name: function that makes the call}`` of the peers that compute such a layer, where they are installed."""
    if runtime.interpreted:
        return {}
    grouped = q.shape[1] != k.shape[1]
    peers = {"torch.compile(flex_attention)": lambda: compiled(layer, q, k, v)}
    last_query_alone = layer["variant"] == "decoding" and layer["M"] == 1  # is one that sees every key
    if (layer["variant"] in ("full", "causal") or last_query_alone) and "softcap" not in layer:
        causal = layer["variant"] == "causal"
        peers["cuDNN SDPA"] = lambda: lambda: bench.sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal, grouped)
    if layer["variant"] in IN_FLASH_ATTENTION and importlib.util.find_spec("flash_attn") is not None:
        peers["FlashAttention-4"] = lambda: flash_attention_4(layer, q, k, v)
    return peers


class Failures:
    """Why peers failed: one that doesn't work here at all is asked ``TRIES`` times, not for every layer."""

    def __init__(self):
        self.ran, self.reasons = set(), {}

    def reason_not(self, peer):
        """Why ``peer`` is not asked again, or ``None``."""
        reasons = self.reasons.get(peer, [])
        never = peer not in self.ran and len(reasons) >= TRIES and len(set(reasons)) == 1
        return f"not asked again after it failed {len(reasons)} times: {reasons[0]}" if never else None

    def failed(self, peer, error):
        """The reason that is recorded."""
        words = str(error).splitlines()[0][:200] if str(error) else ""
        self.reasons.setdefault(peer, []).append(f"{type(error).__name__}: {words}")
        return self.reasons[peer][-1]


FAILURES = Failures()


def for_flash_attention_4(*tensors):
    """The same values in memory as [B, S, H, D], leaves of their own."""
    return [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors]


def version_of(peer):
    """What a peer is part of."""
    if peer == "FlashAttention-4":
        return f"flash-attn-4 {harness.version('flash-attn-4')}"
    cudnn = f", cuDNN {torch.backends.cudnn.version()}" if "cuDNN" in peer else ""
    return f"torch {torch.__version__}{cudnn}"


def exact(layer, q, k, v, do):
    """``{"o": ..., "q": ..., "k": ..., "v": ...}`` in float64 of the first key head of the first sequence, some queries at a
    time; ``rows`` says which queries. Gradients of keys are there only if no query is left out."""
    score_mod, block_mask = mods_of(layer)
    G, M = q.shape[1] // k.shape[1], q.shape[2]
    chunks = list(range(0, M, CHUNK))
    every = G * len(chunks) <= CHUNKS
    if not every:
        chunks = sorted({chunks[0], chunks[len(chunks) // 2], chunks[-1]})
    heads = range(G if every else min(G, 2))
    keys, values = (t.detach()[0, 0].double().requires_grad_() for t in (k, v))
    n, zero = torch.arange(k.shape[2], device=q.device)[None], torch.zeros((), dtype=torch.int64, device=q.device)
    found = {"o": [], "q": [], "k": 0, "v": 0, "rows": [], "heads": len(heads)}
    found["rows"] = torch.cat([torch.arange(first, min(first + CHUNK, M), device=q.device) for first in chunks])
    for h in heads:
        outputs, gradients = [], []
        for rows in found["rows"].split([min(CHUNK, M - first) for first in chunks]):
            queries = q.detach()[0, h, rows].double().requires_grad_()
            z = queries @ keys.mT * queries.shape[-1] ** -0.5
            if score_mod is not None:
                z = score_mod(z, zero, zero + h, rows[:, None], n)
            if block_mask is not None:
                z = z.masked_fill(~block_mask.mask_mod(zero, zero + h, rows[:, None], n), float("-inf"))
            o = z.softmax(-1) @ values
            dq, dk, dv = torch.autograd.grad(o, (queries, keys, values), do[0, h, rows].double())
            outputs.append(o.detach())
            gradients.append(dq)
            found["k"], found["v"] = found["k"] + dk, found["v"] + dv
        found["o"].append(torch.cat(outputs))
        found["q"].append(torch.cat(gradients))
    found["o"], found["q"] = torch.stack(found["o"]), torch.stack(found["q"])
    if not every:
        found["k"] = found["v"] = None
    return found


def errors_of(want, o, gradients):
    """``{"o": error, "q": ..., ...}`` of what one call gave."""
    rows, heads = want["rows"], want["heads"]
    errors = {"o": harness.relative_error(o.detach()[0, :heads, rows], want["o"])}
    for name, gradient in zip("qkv", gradients):
        got = gradient[0, :heads, rows] if name == "q" else gradient[0, 0]
        if want[name] is not None:
            errors[name] = harness.relative_error(got, want[name])
    return {name: population.short(error) for name, error in errors.items()}


def measure(case, machine, rounds):
    """The rows of one case, forward and, where it is trained, backward."""
    layer, half, models = case
    torch.manual_seed(0)
    with population.stream():
        q, k, v = tensors_of(layer)
        do = torch.randn((*q.shape[:3], v.shape[-1]), dtype=q.dtype, device=q.device)
        want = exact(layer, q, k, v, do)
        calls, back, errors, reasons = {}, {}, {}, {}
        for name, make in {"ours": lambda: ours(layer, q, k, v), **peers_of(layer, q, k, v)}.items():
            leaves = (q, k, v)
            asked = f"{name} for {layer['variant']}"
            if reason := FAILURES.reason_not(asked):
                reasons[name] = reason
                continue
            try:
                if name == "FlashAttention-4":
                    leaves = for_flash_attention_4(q, k, v)
                    call = flash_attention_4(layer, *leaves)
                else:
                    call = make()
                if not trained(layer):
                    call = torch.no_grad()(call)
                o = call()
                backward = functools.partial(torch.autograd.grad, o, leaves, do, retain_graph=True)
                errors[name] = errors_of(want, o, backward() if trained(layer) else ())
            except Exception as error:  # a peer that cannot do this layer is recorded with its reason; ours must
                if name == "ours":
                    raise
                reasons[name] = FAILURES.failed(asked, error)
                continue
            FAILURES.ran.add(asked)
            calls[name], back[name] = call, backward
        passes = {"forward": calls, "backward": back} if trained(layer) else {"forward": calls}
        few = max(3, min(10 * rounds, int(30e-3 * rounds / (flops(layer) / TFLOP_S))))
        times = {name: population.timed(functions, few) for name, functions in passes.items()}
    rows = []
    for name, (ms, how) in times.items():
        work = flops(layer) * (1 if name == "forward" else 2.5)
        of_pass = {call: {k: e for k, e in errors[call].items() if (k == "o") == (name == "forward")} for call in calls}
        rows.append(
            {
                "kernel": OPERATOR,
                "pass": name,
                "half": half,
                "models": models,
                "kind": f"{layer['variant']} d{layer['D']}" + (f"/{layer['Dv']}" if "Dv" in layer else ""),
                "shape": layer,
                "dtype": "bfloat16",
                "timed": how["ours"],
                "explained": explained(layer, q, k, v),
                "ours_ms": round(ms["ours"], 5),
                "flops": work,
                "tflop_per_s": round(work / ms["ours"] / 1e9, 1),
                "relative_error": max(of_pass["ours"].values()),
                "errors": of_pass["ours"],
                "peers": [
                    population.peer(peer, version_of(peer), ms[peer], how[peer], max(of_pass[peer].values()))
                    for peer in calls
                    if peer != "ours"
                ]
                + [population.peer(peer, version_of(peer), 0, "", 0, reason) for peer, reason in reasons.items()],
            }
        )
    return rows


def explained(layer, q, k, v):
    """What ours runs, in words."""
    score_mod, block_mask = mods_of(layer)
    return harness.explained(
        flex_attention, q, k, v, score_mod, block_mask, enable_gqa=q.shape[1] != k.shape[1]
    )


def launches(layer, peer):
    """What ``measure`` compiles, of ours or of torch's."""
    q, k, v = tensors_of(layer)
    call = compiled(layer, q, k, v) if peer else ours(layer, q, k, v)
    o = call()
    if trained(layer):
        torch.autograd.grad(o, (q, k, v), o.detach())


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given: torch's first, which takes longest."""
    return [((layer, peer), 0, 1) for peer in (True, False) for layer, *_ in selected]


def line(row):
    """A row as one line of text."""
    peers = "  ".join(
        f"{p['ms'] / row['ours_ms']:5.2f}x {p['name']} ({p['relative_error']:.1e})" if "ms" in p else f"no {p['name']}"
        for p in row["peers"]
    )
    sizes = " ".join(f"{name}{row['shape'][name]}" for name in ("B", "H", "Hkv", "M", "N"))
    return (
        f"{row['half']:8} {row['pass']:8} {row['kind']:16} {sizes:32} {row['ours_ms']:8.4f} ms "
        f"{row['tflop_per_s']:6.1f} TFLOP/s  error {row['relative_error']:.1e}  {peers}"
    )
