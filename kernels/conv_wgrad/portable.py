"""The portable backend: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums."""

from dataclasses import replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.gpu import is_cuda_architecture
from kernels.common.math import cdiv
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad import depthwise
from kernels.conv_wgrad.depthwise import depthwise_kernel, taps_of
from kernels.conv_wgrad.plain import (
    Tile,
    bias_kernel,
    channels_adjacent,
    common_unit,
    is_rows,
    is_wide,
    rows_of,
    steps_of,
    wgrad_kernel,
)
from kernels.conv_wgrad.problem import Cost, Plan, read_through
from kernels.conv_wgrad.split_k import cut
from kernels.conv_wgrad.tiling import candidates, groups_together, is_depthwise, sizes_and_cut, waste

SLOWER = 1.1  # a tile of the portable kernel takes so much longer than a tile that TMA brings


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``: it always can."""
    return None


def cost(problem):
    """The predicted time; of a GPU without parameters, the product's volume with its padding, in tiles that TMA brings."""
    if 0 in (problem.g.M, problem.g.Co, problem.g.columns):
        return Cost(0.0)
    if found := candidates(problem):
        best = model.cheapest(found)
        return Cost(best.time, f"predicted {best.time:.1f} us")
    return Cost(SLOWER * waste(problem.g, problem))


@planned
def plan(problem, may_fix_up=True):
    """The ``Plan`` of a problem; partial sums always have a launch of their own."""
    return plan_cut(problem, *sizes_and_cut(problem))


def plan_cut(problem, sizes, chosen):
    """The ``Plan`` of a ``Cut`` of a sum of these sizes."""
    g = problem.g
    if g.M <= configuration("conv_wgrad", "short", "default", problem.device)["PIXELS"] and chosen.options.get("TMA"):
        chosen = replace(chosen, options=chosen.options | {"TMA": False})  # it would be over before TMA has been told
    text = describe(problem, sizes, chosen)
    if 0 in sizes:
        return Plan(text, wgrad_kernel, (0,), (), {}, 0)
    x, copies_x = read_through(channels_adjacent, problem.input)
    dy, copies_dy = read_through(rows_of, problem.grad_output)
    make = _plan_depthwise if is_depthwise(g) else _plan_product
    return make(problem, text, chosen, x, dy, (copies_x, copies_dy))


def _plan_depthwise(problem, text, chosen, x, dy, copied):
    g = problem.g
    unit = common_unit(16 // x.element_size(), g.Co, dy.stride(0), *x.stride()[:3])
    units = [stride // unit for stride in (dy.stride(0), *x.stride()[:3])]
    options = dict(chosen.options)
    rows, taps = taps_of(g, options.pop("SUMS"))
    runs = -(-g.Q // chosen.options["RUN"])
    strips = g.N * g.P * runs, runs, g.Co_group, g.Co // unit, chosen.blocks, chosen.per
    steps = g.stride[0], g.padding[0], g.padding[2], g.dilation[0]
    sizes = *strips, g.P, g.Q, g.H, g.W, g.R, g.S, *units, *steps
    meta = compiled_for(
        depthwise.Tile, options | dict(UNIT=unit, ROWS=rows, TAPS=taps, STRIDE=g.stride[1], DILATION=g.dilation[1])
    )
    grid = (chosen.tiles * chosen.splits,)
    return Plan(text, depthwise_kernel, grid, sizes, meta, chosen.splits, copied, taken=slice(3))


def _plan_product(problem, text, chosen, x, dy, copied):
    g = problem.g
    vector = 16 // x.element_size()
    together = groups_together(g)
    Co, Ci = g.Co_group * together, g.Ci_group * together
    unit_o = common_unit(vector, Co, dy.stride(0))
    unit_c = common_unit(vector, Ci, *x.stride()[:3])
    units = dy.stride(0) // unit_o, *(stride // unit_c for stride in x.stride()[:3])
    options = dict(chosen.options)
    BLOCK_M, BLOCK_N, BLOCK_K = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    pointwise = is_rows(g, x)
    of_rows = [(dy.stride(0), g.Co, unit_o, 0 if copied[1] else problem.grad_output.address)]
    if pointwise:
        of_rows.append((x.stride(2), g.Ci, unit_c, 0 if copied[0] else problem.input.address))
    options["TMA"] &= has_descriptors(problem) and all(
        unit == vector and address == 0 and step >= columns for step, columns, unit, address in of_rows
    )
    counts = g.M, g.groups // together, Co // unit_o, Ci // unit_c, chosen.per
    sizes = *counts, g.P, g.Q, g.H, g.W, g.R, g.S, *units, *steps_of(g, BLOCK_K)
    options |= {"UNIT_O": unit_o, "UNIT_C": unit_c, "POINTWISE": pointwise, "WIDE": is_wide(g, BLOCK_K, *units[1:])}
    options |= {"PRECISION": problem.precision if x.dtype == torch.float32 else None, "TOGETHER": together}
    meta = compiled_for(Tile, options)
    step_dy, step_x = dy.stride(0), x.stride(2)

    def described(x, dy, target, bias):
        """Descriptors of matrices of rows, in whatever shape their memory is given."""
        rows = TensorDescriptor(dy, [g.M, g.Co], [step_dy, 1], [BLOCK_K, BLOCK_M])
        x = TensorDescriptor(x, [g.M, g.Ci], [step_x, 1], [BLOCK_K, BLOCK_N]) if pointwise else x
        return rows, x, target, dy, bias

    programs = chosen.tiles * chosen.splits
    few = g.M <= configuration("conv_wgrad", "short", "default", problem.device)["BIAS"]
    # a program that walked all pixels of many for the bias would end last
    beside = few and chosen.splits == 1 and not problem.turned
    how = {"arguments": described if options["TMA"] else None}
    how["bias_grid"] = (programs + cdiv(g.Co, BLOCK_M),) if beside else None
    return Plan(text, wgrad_kernel, (programs,), sizes, meta, chosen.splits, copied, **how)


def compiled_for(kind, options):
    """``{"T": kind(...), launch options}`` of options that hold both."""
    tile = {name: options[name] for name in kind._fields if name in options}
    return {"T": kind(**tile)} | {name: value for name, value in options.items() if name not in tile}


def has_descriptors(problem):
    """Whether TMA can copy blocks of rows [M, C] on the problem's device."""
    return problem.g.M < 2**31 and (runtime.interpreted or is_cuda_architecture(problem.device, 9, 10, 11, 12))


def describe(problem, sizes, chosen):
    """What ``run`` would launch, in words: sizes, configuration, split-K and tile waste."""
    g = problem.g
    rows, columns, pixels = sizes
    if is_depthwise(g):
        what = f"sums of {rows} channels and {g.R * g.S} taps over {g.M} pixels, no product"
    else:
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]"
        together = groups_together(g)
        if g.groups > 1:
            what += f" in {g.groups} groups" + f", {together} of them multiplied together" * (together > 1)
    options = ", ".join(f"{name} {value}" for name, value in chosen.options.items())
    padded = "none, there is nothing to sum" if 0 in sizes else f"{waste(g, problem):.2f}"
    return f"{what}; {options}; {chosen.tiles} tiles, split-K {chosen.splits}; tile waste {padded}"


def copies(input, grad_output):
    """Lines of text: which tensors a plan copies before it reads them, and why."""
    lines = []
    if channels_adjacent(input) is not input:
        lines.append(f"copies input: strides {input.stride()}, its channels are not adjacent")
    if grad_output.numel() and rows_of(grad_output).data_ptr() != grad_output.data_ptr():
        lines.append(
            f"copies grad_output: strides {grad_output.stride()}, not rows of adjacent channels one step apart"
        )
    return lines


@planned
def plan_bias(grad_output, device):
    """The ``Plan`` of the sums over a gradient [N, P, Q, Co] of this ``Layout``."""
    N, P, Q, Co = grad_output.shape
    M = N * P * Q
    chosen = cut((Co, 1, M), configuration("conv_wgrad", "bias", "default", device))
    dy, copied = read_through(rows_of, grad_output)
    sizes = (M, Co, chosen.blocks, chosen.per, dy.stride(0))
    grid = (chosen.tiles * chosen.splits,)
    takes = slice(0, 3, 2)  # dy and target
    return Plan("", bias_kernel, grid, sizes, chosen.options, chosen.splits, (False, copied), takes)
