"""The launch of ``forward_kernel``, and which calls it takes."""

from kernels.common.launch import Constants, launch
from kernels.common.plan import Cost
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import dealing, fit, forward_kernel
from kernels.flex_attention.hopper.fit import BLOCK_M, GROUPS, ROWS, described
from kernels.flex_attention.portable.forward import is_narrow, is_short, outputs_of
from kernels.flex_attention.portable.tiles import fits_tma
from kernels.flex_attention.problem import cdiv, columns, has_edge


def reason_not(p):
    """Why this kernel cannot take the call, as text, or ``None``."""
    why = fit.unfit(p, "forward_hopper", "", 256, p.tma("query", "key", "value"))
    BLOCK_N = options(p)["BLOCK_N"]
    if why is None and p.sparse and (p.SPARSE_M % BLOCK_M or p.SPARSE_N % BLOCK_N):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    if why is None and is_short(p):
        return "the call is short, and the plain kernel has less to set up"
    if why is None and is_narrow(p):
        return "the mask leaves a query few keys side by side, and the plain kernel with smaller tiles reads fewer others"
    return why


def cost(p):
    """In products of a kernel that keeps the tensor cores busy while the softmax is taken."""
    return Cost(1)


def options(p):
    """Of the table: BLOCK_N, STAGES, REGISTERS of a multiplying thread, maxnreg; TURNS, whether groups ask for products in
    turn; OVERLAP, whether values' products are waited for behind the softmax where there is no mask; OUT, columns of the
    output that leave at a time; KEPT and KEPT_TO, see ``kept``."""
    return problem.table_options("forward_hopper", p.key, p.device)


def _prepare(p):
    """``(programs, sizes, compile-time arguments, how query, key, value and o are given)``, ``None`` for an o without TMA."""
    tiles_m = cdiv(p.M, BLOCK_M)
    items = p.B * p.Hq * tiles_m
    at_once = 65536 // (options(p)["maxnreg"] * 32 * 12)  # programs that share a multiprocessor's registers
    programs = min(items, at_once * dealing.multiprocessors(p.device))
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, items, p.shared
    static = dealing.order(p.B * p.Hkv, tiles_m, p.G, programs) | compile_time(p)
    rows = ROWS, options(p)["BLOCK_N"], options(p)["BLOCK_N"]
    static |= {"num_warps": 4, "maxnreg": options(p)["maxnreg"]}
    given = *map(described, rows), described(ROWS, static["OUT"]) if static["OUT"] else None
    return (programs,), sizes, Constants(**static), *given


def forward(p, x, want_top=False):
    """Launch the forward pass; arguments and results as ``portable.forward.forward``."""
    o, lse, top = outputs_of(p, x.query, want_top)
    programs, sizes, constants, queries, keys, values, outputs = p.remember(_prepare)
    by_tma = outputs is not None and fits_tma(o)
    launch(
        forward_kernel.attention_forward_hopper_kernel,
        programs,
        queries(x.query), keys(x.key), values(x.value), outputs(o) if by_tma else None, None if by_tma else o, lse, top,
        x.partial, x.full, x.score_tables, x.mask_tables,
        *sizes, *o.stride(),
        outputs=(o,),
        constants=constants,
    )  # fmt: skip
    return o, lse, top


def kept(p):
    """Items' queries in shared memory: the next item's may come while this one's keys are walked through.

    That is the memory of a cache, which long lists of blocks want: up to KEPT_TO keys, if the table has a number.
    """
    most = options(p)["KEPT_TO"]
    return 1 if most and p.N > most else options(p)["KEPT"]


def compile_time(p):
    """The kernel's compile-time arguments but the order of items."""
    BLOCK_N, STAGES, REGISTERS, _ = (options(p)[name] for name in ("BLOCK_N", "STAGES", "REGISTERS", "maxnreg"))
    return {
        "SCORE_MOD": p.score_mod,
        "MASK_MOD": p.mask_mod,
        "DV": p.Dv,
        **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
        "HAS_FULL": p.HAS_FULL,
        "SPARSE_N": p.SPARSE_N or 1,
        "EDGE_N": has_edge(p.N, p.SPARSE_N, BLOCK_N),
        "BLOCK_N": BLOCK_N,
        "BLOCK_D": columns(p.D),
        "BLOCK_DV": columns(p.Dv),
        "ROWS": ROWS,
        "GROUPS": GROUPS,
        "STAGES": STAGES,
        "REGISTERS": REGISTERS,
        "TURNS": bool(options(p)["TURNS"]),
        "OVERLAP": bool(options(p)["OVERLAP"]) and not p.sparse,
        "OUT": min(options(p)["OUT"], columns(p.Dv)),
        "KEPT": kept(p),
    }
