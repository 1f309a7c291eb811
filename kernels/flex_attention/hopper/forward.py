"""The launches of ``forward_kernel``, each a way of the forward pass with a table of its own, and which calls they take.

usual   two groups of 64 queries, tiles of 128 keys: every call that the kernel fits
tall    three groups, where no mask leaves out keys: a tile of keys serves 192 queries
small   two groups, tiles of 64 keys, two programs a multiprocessor: rows so short that an item begins and ends all the
        time, and one program's arithmetic covers the other's
"""

from kernels.common.gluon import has_inline_asm
from kernels.common.operator import launch
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import fit, forward_kernel, scheduler
from kernels.flex_attention.hopper.fit import ROWS, described
from kernels.flex_attention.hopper.forward_kernel import Descs, Tiling
from kernels.flex_attention.hopper.scheduler import Items, MaskLists, Sizes, Tables
from kernels.flex_attention.narrow import is_window
from kernels.flex_attention.plain import Strides, fits_tma, is_short
from kernels.flex_attention.problem import cdiv, columns, has_edge

NO_ASSEMBLY = "Triton has no inline assembly for Gluon, by which warps arrive at a barrier one by one"

MOD = "a score mod may need more registers than a thread has here"


class Forward:
    """A way of the forward pass.

    Its table has BLOCK_N, STAGES, REGISTERS of a multiplying thread, maxnreg; TURNS, whether groups ask for products in
    turn; OVERLAP, whether values' products are waited for behind the softmax (under a mask that is for two programs alone);
    OUT, columns of the output that leave at a time; KEPT and KEPT_TO, see ``kept``; and what ``slower`` asks for.
    """

    TABLE, GROUPS, LEAN, MOST, FASTER = "forward_hopper", fit.GROUPS, False, 256, "the plain kernel"
    LISTS = True  # whether a block mask's drive it

    def options(self, p):
        """What the table says."""
        return problem.table_options(self.TABLE, p.key, p.device)

    def tile(self, p):
        """``(queries, keys)``."""
        return self.GROUPS * ROWS, self.options(p)["BLOCK_N"]

    def reason_not(self, p):
        """Why this way cannot take the call, or is known not to be worth it, as text, or ``None``."""
        why = fit.unfit(p, self.TABLE, "", self.MOST, p.tma("query", "key", "value"), self.FASTER)
        if why is None and self.LEAN and not has_inline_asm():
            why = NO_ASSEMBLY
        BLOCK_M, BLOCK_N = self.tile(p)
        if why is None and p.sparse and not self.LISTS:
            return "a block mask lists blocks for tiles of 128 queries"
        if why is None and p.sparse and (p.SPARSE_M % BLOCK_M or p.SPARSE_N % BLOCK_N):
            return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
        if why is None and is_short(p):
            return "the call is short, and the plain kernel has less to set up"
        return why or self.slower(p)

    def slower(self, p):
        """Why another kernel is known to be faster, as text, or ``None``."""

    def programs(self, p):
        """``(items, the most programs that run at once)``."""
        registers = self.options(p)["maxnreg"] * 32 * 4 * (self.GROUPS + 1)  # of 65536 that a multiprocessor has
        items = p.B * p.Hq * cdiv(p.M, self.tile(p)[0])
        return items, 65536 // registers * scheduler.multiprocessors(p.device)

    def forward(self, p, x, o, lse, top):
        """Launch the forward pass; into o, lse and top, a tensor or ``None``."""
        programs, sizes, items, constants, described, trim = p.cached(_prepare, self)
        by_tma = described.o is not None and fits_tma(o)
        descs = fit.descs(described, (x.query, x.key, x.value, o if by_tma else None))
        outputs = None if by_tma else o, Strides(*o.stride()), lse, top
        lists, tables = MaskLists(x.partial, x.full), Tables(x.score_tables, x.mask_tables)
        kernel, extent = forward_kernel.attention_forward_hopper_kernel, x.extent if trim else None
        launch(kernel, programs, descs, *outputs, lists, tables, extent, sizes, items, **constants)

    def kept(self, p):
        """Items' queries in shared memory: the next item's may come while this one's keys are visited.

        That is the memory of a cache, which long lists of blocks want: up to KEPT_TO keys, if the table has a number.
        """
        most = self.options(p)["KEPT_TO"]
        return 1 if most and p.N > most else self.options(p)["KEPT"]

    def tiling(self, p, order):
        """The kernel's ``Tiling``, of items in this order."""
        options, (BLOCK_M, BLOCK_N) = self.options(p), self.tile(p)
        return Tiling(
            DV=p.Dv,
            **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
            SPARSE_N=p.SPARSE_N or 1,
            EDGE_N=has_edge(p.N, p.SPARSE_N, BLOCK_N),
            BLOCK_N=BLOCK_N,
            BLOCK_D=columns(p.D),
            BLOCK_DV=columns(p.Dv),
            ROWS=ROWS,
            GROUPS=self.GROUPS,
            STAGES=options["STAGES"],
            REGISTERS=options["REGISTERS"],
            TURNS=bool(options["TURNS"]),
            OVERLAP=self.overlaps(p),
            OUT=min(options["OUT"], columns(p.Dv)),
            KEPT=self.kept(p),
            LEAN=self.LEAN,
            BACKWARDS=self.LEAN and (not p.sparse or trims(p)),
            **order,
        )

    def overlaps(self, p):
        """Whether values' products are waited for behind the softmax."""
        return bool(self.options(p)["OVERLAP"]) and not p.sparse


class Tall(Forward):
    """Three groups. RATIO of the table: their tile takes so many times what one of two takes. FROM: the fewest keys."""

    TABLE, GROUPS, LEAN, MOST, FASTER = "forward_hopper_tall", 3, True, 64, "a smaller tile"
    LISTS = False

    def slower(self, p):
        """As of the usual tiles: the last items may leave multiprocessors idle."""
        if p.score_mod is not None:
            return MOD
        if p.N < self.options(p)["FROM"]:
            return f"{p.N} keys are fewer than {self.options(p)['FROM']}, too few for so many queries"
        return self.because(p) if self.time(p) > 1 else None

    def rounds(self, p):
        """Items that the busiest program gets, of these tiles and of the usual ones."""
        return [max(1, cdiv(*way.programs(p))) for way in (self, USUAL)]

    def time(self, p):
        """Beside that of the usual tiles."""
        tall, usual = self.rounds(p)
        return self.options(p)["RATIO"] * tall / usual

    def because(self, p):
        """Why the call takes these tiles, or the usual ones, as text."""
        tall, usual = self.rounds(p)
        return f"{tall} x 192 queries one after another take {self.time(p):.2f} times as long as {usual} x 128"


class Small(Forward):
    """Two programs a multiprocessor. PLAIN of the table: the most queries or keys, of which there are more, without a mask;
    FROM and LONGEST: the fewest and the most under one, LONGEST 0 where it was not measured."""

    TABLE, LEAN, MOST, FASTER = "forward_hopper_small", True, 64, "a larger tile"

    def slower(self, p):
        """As of the usual tiles."""
        if p.score_mod is not None:
            return MOD
        (items, at_once), most = self.programs(p), max(p.M, p.N)
        if why := self.masked(p, most) if p.sparse else self.unmasked(p, most):
            return why
        if items <= at_once:
            return f"there are {items} tiles of queries, no more than the {at_once} that it takes at once"
        return None

    def unmasked(self, p, most):
        """Why another is faster for so many queries or keys without a mask, or ``None``."""
        if most > self.options(p)["PLAIN"]:
            return "no mask leaves out keys, and larger tiles read fewer"
        return None

    def masked(self, p, most):
        """Why another is faster for so many queries or keys under the call's mask, or ``None``."""
        if is_window(p):
            return "the mask leaves a query few keys side by side"
        if not (trims(p) and p.extent.exact):
            return "the mask is more than ends of what a query sees, and may need more registers than a thread has here"
        table = self.options(p)
        if not table["LONGEST"]:
            return "no GPU has shown that it is faster under a mask"
        if not table["FROM"] <= most <= table["LONGEST"]:
            return f"there are {most} queries or keys; it is for {table['FROM']} to {table['LONGEST']}"
        return None

    def because(self, p):
        """Why the call takes these tiles, as text."""
        return "rows are short, and two programs share a multiprocessor"

    def overlaps(self, p):
        """Under a mask, too."""
        return bool(self.options(p)["OVERLAP"])


def trims(p):
    """Whether the mask is known not to let a query look further than so far."""
    return p.sparse and p.mask_mod is not None and p.extent.keys != 0


USUAL, TALL, SMALL = Forward(), Tall(), Small()


def _prepare(p, way):
    """``(programs, sizes, items, compile-time arguments, how query, key, value and o are described, whether the mask's extent
    is asked for)``; an o without TMA is ``None``."""
    BLOCK_M, BLOCK_N = way.tile(p)
    items, at_once = way.programs(p)
    programs, tiles_m = min(items, at_once), cdiv(p.M, BLOCK_M)
    T = way.tiling(p, scheduler.tile_order(p.B * p.Hkv, tiles_m, p.G, programs))
    constants = {"SCORE_MOD": p.score_mod, "MASK_MOD": p.mask_mod, "T": T, "num_warps": 4}
    constants["maxnreg"] = way.options(p)["maxnreg"]
    of_o = described(ROWS, T.OUT) if T.OUT else None
    descs = Descs(described(ROWS), described(BLOCK_N), described(BLOCK_N), of_o)
    sizes, items = Sizes(p.M, p.N, p.G, p.shared, p.scale, p.unit), Items(p.Hkv, tiles_m, items)
    return (programs,), sizes, items, constants, descs, way.LEAN and trims(p)
