"""What the plans for Hopper and Blackwell share: TMA's im2col, tiles and how work is shared out, what copies ask for.

A tile of the weight gradient is BLOCK_M output channels times GROUPS chunks of columns; a chunk is BLOCK_N input channels
under one tap (r, s). For a block of pixels, one copy brings a tile of dy, and one copy a chunk brings what im2col would
hold there: TMA itself walks along the output pixels, shifted by the tap, with zeros outside the image. Chunks
are numbered with taps fastest, so that those of a tile are mostly the same pixels, a step apart.
"""

from dataclasses import dataclass

import torch
import triton

from kernels.common.configs import configuration
from kernels.common.gluon import element, gluon, has_clusters, reason_not, shared_layout
from kernels.common.gpu import multiprocessors
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad import portable
from kernels.conv_wgrad.hopper.loads import Matrix, Tile, Window
from kernels.conv_wgrad.hopper.work import PARTIAL, START, FixUp, Work, fix_ups, share_out
from kernels.conv_wgrad.plain import is_rows, rows_of
from kernels.conv_wgrad.problem import Cost

__all__ = ["Work", "element", "gluon", "share_out"]

PAIR = ((0, 1),), ((0, 0),)  # of two multiprocessors, the second has the other half of dy's channels, and the same x
SURE = 1.05  # times faster than by single multiprocessors a pair has to be predicted: the model is no surer of them
MOST_PIXELS = 1024  # of a block: a kernel counts to the end of the last one

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col


@dataclass(frozen=True)
class Shares:
    """The kernel's ``options``, how the ``work`` is shared out, and ``waste``: 1.0 where no tile is padded."""

    options: dict
    work: Work
    waste: float

    def __str__(self):
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        work, how = self.work, ", the rests end to end" * (self.work.rest > 0)
        tiles = f"{work.tiles} tiles"
        if self.fixed_up:
            tiles, how = f"{work.full} tiles whole, " * (work.rounds > 0) + tiles, how + ", stream-K fix-up"
        return f"{options}; {tiles}, split-K {work.splits}{how}; tile waste {self.waste:.2f}"

    @property
    def fixed_up(self):
        """Whether the launch adds partial sums itself."""
        return isinstance(self.work, FixUp)


@planned
def share(kernel, g, device, split_k=None, turned=False, may_fix_up=True):
    """The ``Shares`` for a geometry: as the model of cost says where the table names one, else three chunks a tile, or two.

    Two where that wastes clearly less, and where channels are no multiples of 8: sums are then stored one by one, or tiles'
    places are rounded, which takes more registers than three groups have.
    """
    if found := candidates(kernel, g, device, split_k, turned, may_fix_up):
        return model.cheapest(found).work
    three, two = (_plan(kernel, f"{n} chunks", g, device, split_k) for n in (3, 2))
    return two if not is_aligned_to_tma(g.Co, g.Ci) or two.waste < 0.9 * three.waste else three


def _plan(kernel, key, g, device, split_k):
    options = configuration("conv_wgrad", kernel, key, device)
    options["BLOCK_M"] = min(options["BLOCK_M"], max(64, triton.next_power_of_2(g.Co)))
    options["BLOCK_N"] = min(options["BLOCK_N"], max(16, triton.next_power_of_2(g.Ci)))
    tiles, blocks, waste = tiled(g, options)
    return Shares(options, share_out(tiles, blocks, options["BLOCK_K"], multiprocessors(device), split_k), waste)


def tiled(g, options):
    """``(tiles, blocks of pixels, tile waste)`` of a geometry."""
    BLOCK_M, BLOCK_N, BLOCK_K, GROUPS = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS"))
    chunks = g.R * g.S * -(-g.Ci // BLOCK_N)
    rows, columns, blocks = -(-g.Co // BLOCK_M), -(-chunks // GROUPS), -(-g.M // BLOCK_K)
    padded = rows * BLOCK_M * columns * GROUPS * BLOCK_N * blocks * BLOCK_K
    return rows * columns, blocks, padded / (g.Co * g.columns * g.M)


@planned
def candidates(kernel, g, device, split_k=None, turned=False, may_fix_up=True):
    """A ``model.Candidate`` of every tile that the table names costs for, its sums shared out as is cheapest for it; else
    none. ``may_fix_up``: whether the launch that makes partial sums may add them."""
    costs = model.costs_of(configuration("conv_wgrad", kernel, "3 chunks", device))
    tiles = costs["tiles"][tiles_for(g)] if costs else []
    found = [model.cheapest(shared) for shared in considered(g, costs, tiles, split_k, turned, may_fix_up)]
    alone = min((one.time for one in found if model.together(one.tile) == 1), default=float("inf"))
    return [one for one in found if model.together(one.tile) == 1 or SURE * one.time < alone]


def considered(g, costs, tiles, split_k=None, turned=False, may_fix_up=True):
    """``[[model.Candidate, ...], ...]``: for each of ``tiles`` that fits, every way to share out its sums that is worth a
    prediction."""
    tiles = [tile for tile in tiles if model.together(tile) == 1 or has_clusters()]
    found, two = [], [tile for tile in tiles if tile["GROUPS"] == 2 and model.together(tile) == 1]
    allowed = tiles if is_aligned_to_tma(g.Co, g.Ci) else [tile for tile in tiles if tile["GROUPS"] == 2]
    for tile in model.fitting(allowed, g.Co, g.Ci) or two:
        options = model.options_of(tile)
        (n, blocks, waste), programs = tiled(g, options), costs["multiprocessors"] // model.together(tile)
        works = [Work(n, blocks, *cut) for cut in sorted(model.cuts(n, blocks, programs, split_k))]
        if split_k is None:
            per = -(-n * blocks // programs)
            works.append(Work(n, blocks, blocks // per, per))
        # a fix-up of channels that are no multiple of 8 has run on the CPU's model alone, so nothing chooses it
        if may_fix_up and not turned and "handed" in tile and is_aligned_to_tma(g.Co, g.Ci):
            works += fix_ups(n, blocks, programs, split_k)
        times = [model.predicted(costs, "hopper", tile, load_of(g, options, work, turned)) for work in works]
        shares = [Shares(options, work, waste) for work in works]
        found.append([model.Candidate(tile, options, *pair) for pair in zip(shares, times, strict=True)])
    return found


def tiles_for(g):
    """The name of the tiles in the costs: how x is read."""
    return "hopper rows" if g.pointwise else "hopper im2col"


def load_of(g, options, work, turned=False):
    """What the launch of a ``Work`` asks of the GPU."""
    copied = [numel for numel, channels in ((g.N * g.H * g.W * g.Ci, g.Ci), (g.M * g.Co, g.Co)) if channels % 8]
    moved = 2 * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    rows, columns = options["BLOCK_M"], options["GROUPS"] * options["BLOCK_N"]
    how = {"slots": work.slots, "zeroed": int(work.slots == work.splits + 2)}
    if isinstance(work, FixUp):
        how = {"slots": 1, "rounds": work.rounds, "whole": work.blocks, "hands": work.others + (work.segments == 1)}
    how |= {"apart": 2 * work.tiles * work.rest * options["BLOCK_K"] * (rows + columns), "copied": sum(copied)}
    how |= {"astray": model.astray(g, rows, columns), "segments": work.segments, "turned": turned}
    return model.Load(getattr(work, "cut", work.items), work.per, 1, numel=g.Co * g.columns, bytes=moved, **how)


def unfit(g, dtype):
    """Why TMA cannot bring a geometry's tiles, as text, or ``None``."""
    if reason := reason_not("im2col copies"):
        return reason
    if dtype.itemsize != 2:
        return f"{dtype} has no 16-bit matrix instruction"
    if g.groups > 1:
        return f"its tiles see all channels, not {g.groups} groups of them"
    if 0 in (g.M, g.H, g.W, g.Ci, g.Co):
        return "there is nothing to sum"
    if max(g.stride) > 8:
        return f"stride is {g.stride}, TMA steps over 8 pixels at most"
    lower, upper = pixel_box(g)
    if not all(-128 <= corner <= 127 for corner in lower + upper):
        return f"its pixels' box begins {lower} from the image's begin and ends {upper} from its end, more than 8 bits"
    if max(g.span) > 256:
        return f"the filter spans {g.span} pixels, TMA shifts by 255 at most"
    if g.M > 2**31 - MOST_PIXELS:
        return f"its {g.M} pixels are more than 32 bits can count"
    if g.M * g.Co * g.columns >= 2**50:
        return "its blocks are more than 32 bits can count"
    return None


def cost(kernel, problem):
    """The predicted time; of a GPU without parameters, the product's volume with its tiles' padding, and not finite where on
    an H200 the portable kernel was faster."""
    g = problem.g
    if found := candidates(kernel, g, problem.device, problem.split_k, problem.turned):
        time = model.cheapest(found).time
        return Cost(time, f"predicted {time:.1f} us")
    if min(g.Ci, g.Co) < 64 or max(g.Ci, g.Co) <= 64:
        return Cost(float("inf"), f"{g.Ci} input and {g.Co} output channels make its tiles small")
    chosen = share(kernel, g, problem.device)
    work = chosen.work
    pixels = -(-work.items // multiprocessors(problem.device)) * work.per * chosen.options["BLOCK_K"]
    portably = portable.waste(g, problem._replace(split_k=None))
    if chosen.waste <= portable.SLOWER * portably and work.slots > 1 and pixels < 2 * (START + PARTIAL):
        because = f"its programs sum {pixels} pixels each, not enough to pay for partial sums of its larger tiles"
        return Cost(float("inf"), because)
    because = f"its tiles are {chosen.waste:.2f} times the product, the portable kernel's {portably:.2f} times"
    return Cost(chosen.waste, because)


def pixel_box(g):
    """``(lower, upper)``, each [h, w]: where the first tap's walk begins, counted from the image's first pixel, and where it
    ends, counted from its last."""
    lower = [-g.padding[0], -g.padding[2]]
    sides = zip((g.P, g.Q), g.stride, (g.H, g.W), lower, strict=True)
    return lower, [(outputs - 1) * stride + 1 - size + first for outputs, stride, size, first in sides]


def is_aligned(x, address=None):
    """Whether TMA can read ``x``, which begins at ``address``: channels adjacent, everything else a multiple of 16 bytes
    apart."""
    address = x.data_ptr() if address is None else address
    steps = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    adjacent = x.stride(-1) == 1 or x.shape[-1] == 1
    return adjacent and address % 16 == 0 and all(step > 0 and step % 8 == 0 for step in steps)


def aligned(x, address=None):
    """``x`` or, where TMA cannot read it, a copy with gaps: pixels a multiple of 8 channels apart."""
    if is_aligned(x, address):
        return x
    return x.new_empty(*x.shape[:-1], -(-x.shape[-1] // 8) * 8)[..., : x.shape[-1]].copy_(x)


def copies(input, grad_output):
    """Lines of text: which tensors ``wgrad`` copies before it reads them, and why."""
    lines = []
    for name, x, rows in (("input", input, input), ("grad_output", grad_output, rows_of(grad_output))):
        if rows.data_ptr() != x.data_ptr() or not is_aligned(rows):
            why = "not adjacent channels and pixels a multiple of 16 bytes apart"
            lines.append(f"copies {name}, {x.numel() * x.element_size()} bytes: strides {x.stride()}, {why}")
    return lines


def descriptors(x, dy, g, options):
    """``(of dy's tiles, of im2col's chunks)``; the latter are plain tiles where x is im2col already."""
    x, dy = aligned(x), aligned(rows_of(dy))
    split, shared = PAIR if model.together(options) == 2 else (None, None)
    dy_desc = TensorDescriptor(*described(dy, (options["BLOCK_K"], options["BLOCK_M"]), split))
    tile = (options["BLOCK_K"], options["BLOCK_N"])
    if is_rows(g, x):
        return dy_desc, TensorDescriptor(*described(x.as_strided((g.M, g.Ci), (x.stride(2), 1)), tile, shared))
    lower, upper = pixel_box(g)
    box = {"pixel_box_lower_corner": lower, "pixel_box_upper_corner": upper}
    return dy_desc, TensorDescriptorIm2Col(*described(x, tile, shared), element_strides=[1, *g.stride, 1], **box)


def tile_of(options, **known):
    """The kernels' ``Tile`` of options and what else is ``known``, and the launch options that are none of it."""
    return portable.compiled_for(Tile, options | known)


def is_pointwise(problem):
    """Whether ``descriptors`` are plain tiles of x."""
    return is_rows(problem.g, aligned(problem.input.meta(), problem.input.address))


_layout = planned(shared_layout)  # a layout takes longer to make than a launch


def described(x, tile, cga=None):
    """``(x, sizes, strides, tile, layout in shared memory)``; the stride of a single row or pixel may have been anything."""
    strides = [stride if stride > 0 and stride % 8 == 0 else 8 for stride in x.stride()]
    return x, list(x.shape), [*strides[:-1], 1], list(tile), _layout(tile, x.dtype, cga)


def numbers_of(g, device, shares):
    """``(schedule, Window, Matrix)`` of ``Shares``, as the kernels read them."""
    options, taps = shares.options, g.R * g.S
    schedule = shares.work.schedule(-(-g.Co // options["BLOCK_M"]), processors_of(device, options))
    last = last_tile(g.Co, options["BLOCK_M"]), last_tile(g.Ci, options["BLOCK_N"])
    window = Window(g.P, g.Q, g.S, taps, *g.stride, g.padding[0], g.padding[2], *g.dilation, *last)
    return schedule, window, Matrix(g.Co, g.Ci, taps, g.columns)


def processors_of(device, options):
    """Programs that run at once."""
    return multiprocessors(device) // model.together(options)


def arguments_of(g, shares, with_fix_up):
    """``arguments`` of a ``Plan``: descriptors, the target, and, ``with_fix_up``, partial sums and counters, or ``None``."""
    work, options = shares.work, shares.options

    def arguments(x, dy, target, bias):
        if work.slots == work.splits + 2 and not shares.fixed_up:
            target[-1].zero_()  # only tiles whose rest lies in two shares have a last partial sum
        fix_up = None
        if shares.fixed_up:
            chunks = work.tiles * options["GROUPS"]
            numel = chunks * work.others * options["BLOCK_M"] * options["BLOCK_N"]
            counters = torch.zeros(chunks, dtype=torch.int32, device=target.device)
            fix_up = torch.empty(numel, dtype=torch.float32, device=target.device), counters
        return *descriptors(x, dy, g, options), target, *(fix_up,) * with_fix_up

    return arguments


def is_aligned_to_tma(Co, Ci):
    """Whether every tile that ends with the channels begins at a multiple of 16 bytes."""
    return Co % 8 == 0 and Ci % 8 == 0


def last_tile(channels, block):
    """The channel that the last tile begins at, by the rule of ``last_of``."""
    return max(0, -(-(channels - block) // 8) * 8)
