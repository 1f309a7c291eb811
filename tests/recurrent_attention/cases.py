"""Random arguments in every layout that breaks kernels, the comparison with the float64 reference, other tile sizes."""

import contextlib
import importlib
import itertools
import math
import pkgutil
import random

import torch

import kernels.recurrent_attention as package
from kernels import runtime
from kernels.common import configs
from kernels.common import operator as common_launch
from kernels.recurrent_attention import recurrent_attention
from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests import tensors
from tests.tensors import relative_error

GATES = ("g", "g_gamma", "gk", "gv")
LAYOUTS = ("flat", "padded", "transposed", "expanded")
STRENGTHS = ("mild", "strong", "resets")

# Relative root-mean-square error: about three times the largest measured. Sums are fp32; what is left in float16 and bfloat16
# is the rounding of a result. On a GPU float32 products are three tf32 products in tensor cores:
# up to 7.1e-6 were measured on an H200, and up to 1.0e-3 for float16, whose operands tf32 rounds once more.
if runtime.interpreted:
    TOLERANCE = {torch.float32: 1.5e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}
else:
    TOLERANCE = {torch.float32: 1e-5, torch.float16: 1.5e-3, torch.bfloat16: 6e-3}

# Every module of the operator by name: tables and launches are patched wherever they are used.
MODULES = {m.name: importlib.import_module(m.name) for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")}


def place(values, layout="flat"):
    """As ``tensors.place``, and "expanded": stride 0 along the heads, so that ``values`` are not those it was given."""
    if layout == "expanded":
        return tensors.place(values.narrow(min(2, values.ndim - 1), 0, 1), "padded").expand(values.shape)
    return tensors.place(values, layout)


def same(a, b):
    """Equal to the bit in the interpreter; a compiler may fuse otherwise where a kernel is told other strides or outputs."""
    return torch.equal(a, b) if runtime.interpreted else relative_error(a, b) <= TOLERANCE[a.dtype]


def some_gates(shape, strength, generator):
    """Logarithms of decays: between exp(-0.5) and 1, down to exp(-25), or one in sixteen an erased memory."""
    gates = -0.5 * torch.rand(shape, generator=generator)
    if strength == "strong":
        gates = 50 * gates
    elif strength == "resets":
        gates[torch.rand(shape, generator=generator) < 1 / 16] = -math.inf
    return gates


def shapes(B, T, H, Hkv, K, V, N):
    """The shape of every tensor argument."""
    return {
        "q": (B, T, H, K), "k": (B, T, Hkv, K), "v": (B, T, Hkv, V), "g": (B, T, H), "g_gamma": (H,),
        "gk": (B, T, H, K), "gv": (B, T, H, V), "initial_state": (N, H, K, V),
    }  # fmt: skip


def problem(
    B=2, T=13, H=2, Hkv=None, K=12, V=20, *, gates=(), strength="mild", dtype=torch.float32, gate_dtype=None,
    initial=False, cu_seqlens=None, layout="flat", seed=0,
):  # fmt: skip
    """``(leaves, packing)``: the tensor arguments by name, each a leaf, and ``cu_seqlens`` as a keyword."""
    generator = torch.Generator().manual_seed(seed)
    if cu_seqlens is not None:
        B, T = 1, cu_seqlens[-1]
    N = B if cu_seqlens is None else len(cu_seqlens) - 1
    leaves = {}
    for name, shape in shapes(B, T, H, H if Hkv is None else Hkv, K, V, N).items():
        if name in GATES:
            values = some_gates(shape, "mild" if name == "g_gamma" else strength, generator).to(gate_dtype or dtype)
        else:
            values = torch.randn(shape, generator=generator).to(dtype)
        if name not in GATES and name != "initial_state" or name in gates or name == "initial_state" and initial:
            leaves[name] = place(values, layout).requires_grad_()
    packing = {} if cu_seqlens is None else {"cu_seqlens": torch.tensor(cu_seqlens, device=runtime.device)}
    return leaves, packing


def measure(leaves, *, final=False, do_layout="flat", seed=1, reference=recurrent_attention_reference, **options):
    """``{name: (ours, exact)}`` of the outputs and all gradients; exact is in float64, from the same rounded numbers."""
    generator = torch.Generator().manual_seed(seed)
    ours = recurrent_attention(**leaves, output_final_state=final, **options)
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    options.pop("mode", None)
    want = reference(**exact, output_final_state=final, **options)
    ours, want = ((o, s) if final else (o,) for o, s in (ours, want))
    gradients = [place(torch.randn(o.shape, generator=generator).to(o.dtype), do_layout) for o in ours]
    grads = torch.autograd.grad(ours, leaves.values(), gradients)
    # without tokens there is no graph
    connected = [(o, g.double()) for o, g in zip(want, gradients, strict=True) if o.requires_grad]
    wanted = [torch.zeros_like(x) for x in exact.values()]
    if connected:
        outputs, factors = zip(*connected, strict=True)
        wanted = torch.autograd.grad(outputs, exact.values(), factors, materialize_grads=True)
    pairs = dict(zip(("o", "final_state"), zip(ours, want, strict=True), strict=False))
    return pairs | {f"d{name}": pair for name, *pair in zip(leaves, grads, wanted, strict=True)}


def bound(name, dtype, mode, leaves):
    """The largest error allowed. Chunks of 16-bit numbers have 16-bit products, whatever they are stored as. In a chunk
    exponents are differences of sums over its gates, whose rounding grows with them; one below -104, -inf among them, in gk
    counts as -104, in g and g_gamma it is counted apart. g_gamma's gradient is a sum that may cancel."""
    largest = TOLERANCE[dtype]
    if mode != "recurrent":
        if dtype == torch.float32:
            largest *= max(growth(name, leaf) for name, leaf in leaves.items())
        largest = max(largest, TOLERANCE[leaves["q"].dtype])
    return 6 * largest if name == "dg_gamma" and dtype == torch.float32 else largest


def growth(name, leaf):
    """How much more error than without gates float32 chunks may have because of this one."""
    gate = leaf.detach().cpu().float()
    if name not in ("g", "g_gamma", "gk") or not gate.numel():
        return 1
    if name != "gk":
        gate = gate.where(gate > -104, 0)
    lowest = gate.min()
    return 1 if lowest > -1 else 6 if lowest > -15 else 20 if lowest > -100 else 100


def compare(leaves, *, mode="recurrent", **options):
    """Forward and all gradients against the float64 reference: shapes, dtypes, errors."""
    pairs = measure(leaves, mode=mode, **options)
    for name, (got, expected) in pairs.items():
        dtype = leaves["q"].dtype if name == "o" else torch.float32 if name == "final_state" else leaves[name[1:]].dtype
        assert got.dtype == dtype, f"{name} has dtype {got.dtype}"
        assert got.shape == expected.shape, name
        if got.numel():
            error = relative_error(got, expected)
            assert error <= bound(name, dtype, mode, leaves), f"{name}: relative error {error:.1e}"
    return pairs


def check(*sizes, mode="recurrent", final=False, reverse=False, scale=None, layout="flat", **kind):
    """``compare`` of one random problem."""
    leaves, packing = problem(*sizes, layout=layout, **kind)
    return compare(leaves, mode=mode, final=final, reverse=reverse, scale=scale, do_layout=layout, **packing)


@contextlib.contextmanager
def configured(**options):
    """Within, the operator's kernels take these options, ``kernel={option: value}``, instead of those of its table."""
    with configs.instead(lambda package, kernel, *rest: configs.table_says(package, kernel, *rest) | options.get(kernel, {})):
        yield


@contextlib.contextmanager
def recorded(run=True):
    """Within, a list of every ``(kernel, grid, args, meta)`` launched; without ``run`` nothing is computed."""
    seen = []
    before = common_launch.launch

    def noted(kernel, grid, *args, **meta):
        seen.append((kernel, grid, args, meta))
        if run:
            before(kernel, grid, *args, **meta)

    modules = [m for m in (*MODULES.values(), common_launch) if getattr(m, "launch", None) is before]
    try:
        for module in modules:
            module.launch = noted
        yield seen
    finally:
        for module in modules:
            module.launch = before


CHOICES = {
    "sizes": [(2, 13, 1, 1, 12, 20), (1, 21, 2, 1, 20, 7), (2, 5, 4, 2, 33, 16)],
    "mode": ["recurrent", "chunk"],
    "g": [False, True],
    "g_gamma": [False, True],
    "gk": [False, True],
    "gv": [False, True],
    "strength": STRENGTHS,
    "initial": [False, True],
    "final": [False, True],
    "reverse": [False, True],
    "packing": [None, [0, 3, 3, 4, 13, 18], [0, 0, 16], [0, 1, 2], [0, 33]],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "gate_dtype": [None, torch.float32],
    "layout": LAYOUTS,
    "scale": [None, 0.7],
    "runs": [1, 3],
}


def possible(case):
    """Chunks have no form for gates on values."""
    return not (case.get("mode") == "chunk" and case.get("gv"))


def pairwise(choices, seed=0):
    """Cases in which every possible pair of values of every two options occurs: greedy, the same list every time."""
    rng = random.Random(seed)
    names = list(choices)
    values = lambda pick: {n: choices[n][k] for n, k in pick.items()}  # noqa: E731
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
        if possible(values({a: i, b: j}))
    }
    pairs = lambda pick: {(a, pick[a], b, pick[b]) for a, b in itertools.combinations(names, 2)}  # noqa: E731
    while left:
        a, i, b, j = min(left)
        tries = [{n: rng.randrange(len(choices[n])) for n in names} | {a: i, b: j} for _ in range(60)]
        best = max((t for t in tries if possible(values(t))), key=lambda pick: len(pairs(pick) & left))
        left -= pairs(best)
        yield values(best)


def run(case):
    """``check`` of a case drawn from ``CHOICES``, in chunks so short that most have several."""
    rest = {name: value for name, value in case.items() if name not in ("sizes", "packing", "runs", *GATES)}
    gates = [name for name in GATES if case[name]]
    with configured(chunk={"C": 16, "runs": case["runs"]}):
        return check(*case["sizes"], gates=gates, cu_seqlens=case["packing"], **rest)
