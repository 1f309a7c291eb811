"""Bugs of exercise 02."""

import torch

from tests.course.mutants import Mutant, Target


def naive(tiled_matmul) -> bool:
    """Square float16 matrices, whole tiles, one step along K; a has zeros on its diagonal and above."""
    a, b = (torch.randn(32, 32, generator=torch.Generator().manual_seed(seed)).half() for seed in (1, 2))
    a = a.tril(-1)
    out = torch.zeros(32, 32)
    tiled_matmul(a, b, out, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32)
    return torch.allclose(out, a.float() @ b.float(), atol=0.1)


STRIDES = "each address is row * stride + column * stride, with the two strides of that tensor"

TARGET = Target(
    "02_tiled_matmul",
    "tiled_matmul",
    ("kernel",),
    naive,
    (
        Mutant(
            "missing load mask",
            "whole tiles of a are loaded",
            (", mask=mask_m & mask_k[None, :], other=0.0", ""),
            "ragged depth",
            "the load of a is not masked along K (mask_k)",
        ),
        Mutant(
            "missing K mask",
            "b is not masked along K",
            ("mask=mask_k[:, None] & mask_n", "mask=mask_n"),
            "ragged depth",
            "the load of b is not masked along K (mask_k)",
        ),
        Mutant(
            "rows beyond M loaded",
            "a is not masked along M; the surplus is never stored",
            ("mask=mask_m & mask_k[None, :]", "mask=mask_k[None, :]"),
            "stays inside its tensors",
            "the load of a is not masked along M (mask_m)",
        ),
        Mutant(
            "columns beyond N loaded",
            "b is not masked along N; the surplus is never stored",
            ("mask=mask_k[:, None] & mask_n", "mask=mask_k[:, None]"),
            "stays inside its tensors",
            "the load of b is not masked along N (mask_n)",
        ),
        Mutant(
            "missing store mask",
            "whole tiles are stored",
            (", acc, mask=mask_m & mask_n)", ", acc)"),
            "ragged rows and columns",
            "the store of out is not masked along M (mask_m)",
        ),
        Mutant(
            "swapped dims in a mask",
            "rows are held against N",
            ("mask_m = offs_m < M", "mask_m = offs_m < N"),
            "ragged rows and columns",
            "the store of out is not masked along M (mask_m)",
        ),
        Mutant(
            "dropped accumulate",
            "each step replaces the accumulator",
            ("acc = tl.dot(a, b, acc, ", "acc = tl.dot(a, b, "),
            "whole tiles",
            "only the last tile along K is left: add to the accumulator, do not replace it",
        ),
        Mutant(
            "hard-coded step",
            "the loop advances by 32 whatever BLOCK_K is",
            ("min(end, K), BLOCK_K)", "min(end, K), 32)"),
            "whole tiles",
            "only the first tile along K is used: loop up to the diagonal",
        ),
        Mutant(
            "partial tile dropped",
            "the number of steps is rounded down",
            ("min(end, K), BLOCK_K)", "min(end, K // BLOCK_K * BLOCK_K), BLOCK_K)"),
            "ragged depth",
            "the partial tile at the end of K is left out: the loop must run to K",
        ),
        Mutant(
            "float16 accumulator",
            "sums are kept in float16",
            (
                "dtype=tl.float32)",
                "dtype=tl.float16)",
                "tl.dot(a, b, acc, ",
                "tl.dot(a, b, acc, out_dtype=tl.float16, ",
            ),
            "float32 accumulation",
            "sums are kept in float16: the accumulator must be tl.float32",
        ),
        Mutant(
            "float16 products",
            "the product of each pair of tiles is rounded to float16",
            ("acc = tl.dot(a, b, acc, input_precision", "acc += tl.dot(a, b, out_dtype=tl.float16, input_precision"),
            "float32 accumulation",
            "sums are kept in float16: the accumulator must be tl.float32",
        ),
        Mutant(
            "column stride left out",
            "the elements of a row of b are taken as neighbours",
            ("offs_n * stride_bn", "offs_n"),
            "strides",
            STRIDES,
        ),
        Mutant(
            "the other tensor's stride",
            "rows of out are placed with the stride of a",
            ("offs_m * stride_om", "offs_m * stride_am"),
            "strides",
            STRIDES,
        ),
        Mutant(
            "swapped block sizes",
            "columns advance by BLOCK_M",
            ("tl.program_id(1) * BLOCK_N", "tl.program_id(1) * BLOCK_M"),
            "tile shapes",
            "no program stores them: look at grid, offsets, strides and mask along N",
        ),
        Mutant(
            "no triangle",
            "the tile that the diagonal crosses counts as a whole",
            ("        a = tl.where(offs_k[None, :] <= offs_m, a, 0.0)\n", ""),
            "nothing above the diagonal",
            "what stands above the diagonal is added: keep a[m, k] where k <= m, element by element",
        ),
        Mutant(
            "triangle by multiplication",
            "what stands above the diagonal is multiplied by 0",
            ("tl.where(offs_k[None, :] <= offs_m, a, 0.0)", "a * (offs_k[None, :] <= offs_m).to(a.dtype)"),
            "nothing above the diagonal",
            "what stands above the diagonal is multiplied, and 0 · NaN is NaN: replace it with tl.where",
        ),
        Mutant(
            "diagonal left out",
            "k < m instead of k <= m",
            ("offs_k[None, :] <= offs_m", "offs_k[None, :] < offs_m"),
            "whole tiles",
            "row m lacks the term k = m: the diagonal belongs to the triangle",
        ),
        Mutant(
            "all steps taken",
            "the loop runs over all of K; the triangle makes the rest zeros",
            ("min(end, K)", "K"),
            "no step past the diagonal",
            "steps past the diagonal are taken, and 0 · NaN is NaN: the loop ends at the program's last row",
        ),
        Mutant(
            "end counted in steps",
            "the loop of the program in row p of tiles ends at (p + 1) * BLOCK_K",
            ("(tl.program_id(0) + 1) * BLOCK_M", "(tl.program_id(0) + 1) * BLOCK_K"),
            "tile shapes",
            "the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time",
        ),
        Mutant(
            "float16 zeros",
            "the accumulator begins in float16 and goes on in float32",
            ("dtype=tl.float32)", "dtype=tl.float16)", "acc = tl.dot(a, b, acc, ", "acc += tl.dot(a, b, "),
            "compiles",
            "`acc` is a float16 block [64, 64] before the loop and a float32 block [64, 64] after a step",
        ),
        Mutant(
            "TF32",
            "the product of float32 tiles may be rounded",
            (', input_precision="ieee"', ""),
            "compiles",
            'a product of float32 blocks keeps 10 of 23 bits unless it says input_precision="ieee"',
        ),
        Mutant(
            "enumerate",
            "the steps are counted by Python",
            (
                "for start in range(0, min(end, K), BLOCK_K)",
                "for _, start in enumerate(range(0, min(end, K), BLOCK_K))",
            ),
            "compiles",
            "a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else",
        ),
        Mutant(
            "four times the way",
            "the loop runs to 4 K, where everything is masked",
            ("range(0, min(end, K), BLOCK_K)", "range(0, 4 * K, BLOCK_K)"),
            "cheap",
            "times the loads and stores are executed that the lesson's scheme needs",
        ),
        Mutant(
            "no end at the diagonal",
            "every program goes along all of K",
            ("min(end, K), BLOCK_K)", "K, BLOCK_K)"),
            "cheap",
            "1 of 3 points: loads ask for 4 times the inputs' bytes, and 2.5 times do",
        ),
        Mutant(
            "other left out",
            "what b holds beyond K is undefined, and multiplied by 0",
            ("mask=mask_k[:, None] & mask_n, other=0.0)", "mask=mask_k[:, None] & mask_n)"),
            "ragged depth",
            "`other` is missing. What a masked lane holds is undefined on a GPU",
        ),
        Mutant(
            "and",
            "two masks are joined by Python's `and`",
            ("mask=mask_m & mask_n)", "mask=mask_m and mask_n)"),
            "ragged rows and columns",
            "`mask_m and mask_n`: `and` asks whether a whole block is true",
        ),
        Mutant(
            "precedence",
            "a comparison joined by & has no parentheses",
            ("mask=mask_m & mask_k[None, :], ", "mask=offs_m >= 0 & mask_k[None, :], "),
            "ragged depth",
            "`offs_m >= 0 & mask_k[None, :]`: `&` binds tighter than `>=`",
        ),
        Mutant(
            "axes of the grid exchanged",
            "rows of tiles come from program_id(1), columns from program_id(0)",
            (
                "(tl.program_id(0) * BLOCK_M",
                "(tl.program_id(1) * BLOCK_M",
                "(tl.program_id(1) * BLOCK_N",
                "(tl.program_id(0) * BLOCK_N",
                "end = (tl.program_id(0) + 1)",
                "end = (tl.program_id(1) + 1)",
            ),
            "whole tiles",
            "no program stores them: look at grid, offsets, strides and mask along N",
        ),
        Mutant(
            "added to garbage",
            "the tile is added to what lies in the output",
            ("tl.store(out_ptr", "tl.atomic_add(out_ptr"),
            "whole tiles",
            "nobody has cleared the output",
        ),
    ),
)
