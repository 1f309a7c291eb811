"""The check of exercise 02: ``tiled_matmul(a, b, out, BLOCK_M, BLOCK_N, BLOCK_K)`` writes the lower triangle of a, times b,
to out: row m sums over k <= m. A variation takes the upper triangle, or a diagonal beside the main one.
"""

import functools
from dataclasses import dataclass

import torch

from kernels.check.framework import (
    ADDRESSES,
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)
from kernels.check.variations import Variation, among

NAN = float("nan")


@dataclass(frozen=True)
class Triangle(Variation):
    """What of row m counts: k <= m + diagonal in the lower triangle, k >= m + diagonal in the upper one."""

    side: str = among("lower", "upper")
    diagonal: int = among(0, -1, 1, -2, 2)

    @property
    def condition(self) -> str:
        """What k of row m belongs to the sum."""
        end = "m" if not self.diagonal else f"m {'+-'[self.diagonal < 0]} {abs(self.diagonal)}"
        return f"k {'<=' if self.side == 'lower' else '>='} {end}"

    @property
    def asked(self) -> str:
        """In words."""
        return f"the {self.side} triangle with the sum over {self.condition}"

    @property
    def outside(self) -> str:
        """Where the elements lie that have no meaning."""
        return "above" if self.side == "lower" else "below"

    def kept(self, a):
        """``a`` with zeros outside the triangle, whatever stands there."""
        return a.tril(self.diagonal) if self.side == "lower" else a.triu(self.diagonal)

    def answer(self, a, b):
        """The answer in float64. Rows of ``b`` that belong to no sum may hold NaN."""
        reached = self.kept(torch.ones(a.shape)).any(0)
        return self.kept(a.double())[:, reached] @ b[reached].double()

    def ends(self, m, tall: int, K: int):
        """One more than the last k that the program of row ``m`` needs."""
        return ((m // tall + 1) * tall + self.diagonal).clamp(0, K) if self.side == "lower" else torch.full_like(m, K)

    def begins(self, m, tall: int, step: int):
        """The first k of the first step that the program of row ``m`` needs."""
        return (m // tall * tall + self.diagonal).clamp(min=0) // step * step if self.side == "upper" else 0 * m

    def case(
        self, a, b, *, packed=False, orders=("", "", ""), shared="", blocks=(16, 16, 16), poison=(), tolerance=5e-3
    ) -> Case:
        """One call on ``a`` and ``b``, with fences as wide as the blocks."""
        launch = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks))
        fence = None if packed else dict(zip("MNK", blocks))
        out = Fenced("out", "MN", torch.empty(a.shape[0], b.shape[1]), fence=fence, order=orders[2])
        return Case(
            inputs=[
                Fenced("a", "MK", a, fence=fence, order=orders[0], shared=shared),
                Fenced("b", "KN", b, fence=fence, order=orders[1]),
            ],
            # The precision properties alone look at the last digits.
            outs=[Output(out, self.answer(a, b), tolerance=tolerance)],
            launch=launch,
            poison=poison,
        )

    def normal(self, draw: Draw, M: int, N: int, K: int, dtype=torch.float16, above: float | None = 0.0):
        """A pair of matrices; ``above`` stands outside the triangle of a, or, when None, numbers like all others."""
        a, b = draw.normal(M, K, dtype=dtype), draw.normal(K, N, dtype=dtype)
        if above is not None:
            free = self.kept(torch.ones(M, K))
            if above == 0:  # what counts in the published exercise alone is no 0: whoever wrote that must not be right
                free += Triangle().kept(torch.ones(M, K))
            a = a.masked_fill(free == 0, above)
        return a, b

    def aligned(self, draw: Draw):
        """Whole tiles only; oblong, then square, so that a transposed product has the right shape and the wrong values."""
        size = draw.size(32, 32, 64, multiple_of=16)
        yield self.case(*self.normal(draw, size, size + 32, size + 16), packed=True)
        yield self.case(*self.normal(draw, size, size, size), packed=True)

    def outside_the_triangle(self, draw: Draw):
        """Numbers outside the triangle, then NaN; tiles that it crosses at corners, and wide and tall ones."""
        for above in (None, NAN):
            for blocks in ((16, 16, 16), (16, 16, 32), (32, 16, 16)):
                size = draw.size(32, 32, 64, multiple_of=32)
                yield self.case(*self.normal(draw, size, size, size, above=above), packed=True, blocks=blocks)

    def past_the_diagonal(self, draw: Draw):
        """NaN in the rows of b that no step reaches, past the last row of a; in the upper triangle, rows without a sum."""
        M = draw.size(32, 32, 64, multiple_of=32)
        if self.side == "upper":
            for K in (M - 16, M):
                yield self.case(*self.normal(draw, M + 48, M, K, above=NAN), packed=True)
            return
        a, b = self.normal(draw, M, M + 48, M + 48)
        b[-(-(M + self.diagonal) // 16) * 16 :] = NAN
        for blocks in ((16, 16, 16), (32, 16, 16)):
            yield self.case(a, b, packed=True, blocks=blocks)

    def strides(self, draw: Draw):
        """Each matrix in turn stored transposed, rows of ``a`` that are one row repeated, rows with gaps."""
        M, N, K = (draw.size(shown, 16, 48, multiple_of=16) for shown in (16, 32, 32))
        for orders in (("", "", ""), ("KM", "", ""), ("", "NK", ""), ("", "", "NM")):
            yield self.case(*self.normal(draw, M, N, K), orders=orders)
        a, b = self.normal(draw, 1, N, K, above=None)
        yield self.case(a.expand(M, K), b, shared="M")

    def ragged_output(self, draw: Draw):
        """Rows and columns that fill no tile, and fewer of them than one tile has."""
        yield self.case(*self.normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), 16))
        yield self.case(*self.normal(draw, draw.size(3, 1, 15), draw.size(5, 1, 15), 16))

    def ragged_depth(self, draw: Draw):
        """A K that fills no tile, one below a tile, and an empty sum, with rows that reach past each."""
        for K in (draw.size(23, 17, 31), draw.size(5, 1, 15), 0):
            yield self.case(*self.normal(draw, 48, 16, K), poison=None)

    def tiles(self, draw: Draw):
        """The same product with tiles of several shapes."""
        a, b = self.normal(draw, *(draw.size(64, 64, 128, multiple_of=64) for _ in "MNK"))
        for blocks in ((16, 32, 64), (32, 16, 16), (64, 64, 32)):
            yield self.case(a, b, blocks=blocks)

    def accumulation(self, draw: Draw):
        """Sums of up to thousands of terms, and sums past float16's largest value."""
        size = draw.size(2048, 1536, 2048, multiple_of=256)
        a, b = self.normal(draw, size, 16, size, above=None)
        yield self.case(a * 0.25 + 1, b * 0.25 + 1, blocks=(256, 16, 256), tolerance=None)
        a, b = self.normal(draw, 32, 16, 32, above=None)
        yield self.case(a + 300, b + 300, tolerance=None)

    def float32(self, draw: Draw):
        """float32 matrices: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
        yield self.case(*self.normal(draw, 64, 32, 64, dtype=torch.float32), tolerance=None)

    def suspects(self, case: Case, out: Output):
        """Known mistakes, as formulas."""
        full, b = (tensor.values.double() for tensor in case.inputs)
        if b.isnan().any():
            return
        yield from self.instead(lambda other: other.answer(full, b))
        a, (M, K), N = self.kept(full), full.shape, b.shape[1]
        tall, step = case.launch["BLOCK_M"], case.launch["BLOCK_K"]
        k, m = torch.arange(K), torch.arange(M)[:, None]
        begins, ends = self.begins(m, tall, step), self.ends(m, tall, K)  # of each row's program
        last = begins + (ends - 1 - begins).div(step, rounding_mode="floor") * step  # the first index of its last step
        whole = K // step * step
        yield "only the last tile along K is left: add to the accumulator, do not replace it", (a * (k >= last)) @ b
        yield "the partial tile at the end of K is left out: the loop must run to K", (a * (k < whole)) @ b
        if self.side == "lower":
            yield "only the first tile along K is used: loop up to the diagonal", (a * (k < step)) @ b
            early = (m // tall + 1) * step + self.diagonal
            yield "the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time", (a * (k < early)) @ b
        else:
            yield "only the tile at the diagonal is used: the loop goes on to K", (a * (k < begins + step)) @ b
            late = m // tall * step
            yield "the loop of program p begins at p * BLOCK_K: rows come BLOCK_M at a time", (a * (k >= late)) @ b
            late = m // tall * tall + tall
            yield (
                "the loop begins after the program's first row: its tile at the diagonal is missing",
                (a * (k >= late)) @ b,
            )
        steps = "the loop advances by 1, so columns are added again and again: range(0, end, BLOCK_K)"
        yield steps, (a * (k - begins + 1).clamp(max=step)) @ b
        cause = "of each row of tiles is left out" + ": the diagonal runs through it" * (self.side == "lower")
        yield f"the last tile {cause}", (a * (k < last)) @ b
        yield "the first tile along K is left out", (a * (k >= begins + step)) @ b
        if not self.varied:
            yield "row m lacks the term k = m: the diagonal belongs to the triangle", full.tril(-1).nan_to_num() @ b
        if not full.isnan().any():
            added = f"what stands {self.outside} the diagonal is added"
            cause = f"{added}: keep a[m, k] where {self.condition}, element by element"
            yield cause, (full * (k >= begins) * (k < ends)) @ b
            yield cause, full @ b
            other = full.triu() if self.side == "lower" else full.tril()
            yield f"the other triangle is kept: a[m, k] belongs to the sum where {self.condition}", other @ b
        if M == N == K:
            yield "b is read transposed: its rows are offs_k, its columns offs_n", a @ b.T
            yield "a is read transposed: its rows are offs_m, its columns offs_k", self.kept(full.T) @ b
            yield "the tiles are stored transposed: rows are offs_m, columns offs_n", (a @ b).T

    def both_ragged(self, draw: Draw):
        """Everything ragged at once, for the addresses."""
        yield self.case(*self.normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), draw.size(23, 17, 31)))

    def large_tiles(self, draw: Draw):
        """float16 in tiles as a GPU wants them, and float32, whose digits are asked for."""
        yield self.case(*self.normal(draw, 128, 128, 128), packed=True, blocks=(64, 64, 32))
        yield self.case(*self.normal(draw, 128, 128, 128, dtype=torch.float32), packed=True, blocks=(32, 32, 32))

    def square(self, draw: Draw):
        """Four tiles on each axis: ten or thirteen of sixteen tiles of a lie in the triangle."""
        yield self.case(*self.normal(draw, 64, 64, 64), packed=True)

    def steps(self, case: Case) -> int:
        """Two loads for each step that the triangle needs, and a store for each tile."""
        (M, N), (tall, wide, step) = case.outs[0].tensor.shape, case.launch.values()
        (K, _), m = case.inputs[1].shape, torch.arange(0, M, tall)
        taken = -(-(self.ends(m, tall, K) - self.begins(m, tall, step)) // step)
        return (N // wide) * int((2 * taken + 1).sum())


READ_LOOP = "Lesson 03, step 2"
READ_STRIDES = "Lesson 01, step 4"
READ_MASK = "Lesson 03, step 4"
READ_FP32 = "Lesson 03, step 5"


@functools.cache
def exercise(task: Triangle) -> Exercise:
    """The exercise that asks for ``task``."""
    lower = task.side == "lower"
    over = (
        task.diagonal > 0 if lower else task.diagonal < 0
    )  # a row of tiles needs one tile beyond the one on the diagonal
    least = 3.25 if over else 2.5
    return Exercise(
        name="tiled_matmul",
        missing="the kernel stores nothing yet. It needs a loop over the tiles along K, and a store after it.",
        properties=(
            Property(
                "whole tiles", 1, READ_LOOP, task.aligned, "a tile is offs = program_id * BLOCK + tl.arange(0, BLOCK)"
            ),
            Property(
                f"nothing {task.outside} the diagonal",
                2,
                READ_MASK,
                task.outside_the_triangle,
                f"a[m, k] belongs to the sum where {task.condition}: compare offs_k with offs_m inside the tile",
                not_finite=f"what stands {task.outside} the diagonal is multiplied, and 0 · NaN is NaN: "
                "replace it with tl.where",
            ),
            Property(
                "no step past the diagonal" if lower else "rows without a sum",
                1,
                READ_LOOP,
                task.past_the_diagonal,
                "a program needs no k beyond its last row: the loop ends there, or at K"
                if lower
                else "rows past the last column sum over nothing: 0 is stored there",
                not_finite="steps past the diagonal are taken, and 0 · NaN is NaN: the loop ends at the program's last row",
            ),
            Property(
                "strides",
                1,
                READ_STRIDES,
                task.strides,
                "each address is row * stride + column * stride, with the two strides of that tensor",
            ),
            Property(
                "ragged rows and columns",
                1,
                READ_MASK,
                task.ragged_output,
                "the grid must cover the last, partial tiles, and the masks must cut them at M and N",
            ),
            Property("ragged depth", 1, READ_MASK, task.ragged_depth, "lanes beyond K must add nothing"),
            Property(
                "tile shapes",
                1,
                READ_LOOP,
                task.tiles,
                "offs_m takes program_id(0) and BLOCK_M, offs_n program_id(1) and BLOCK_N",
            ),
            Property(
                "float32 accumulation",
                1,
                READ_FP32,
                task.accumulation,
                "sums are kept in float16: the accumulator must be tl.float32",
            ),
            Property(
                "stays inside its tensors",
                1,
                READ_MASK,
                task.both_ragged,
                ADDRESSES,
                needs="the interpreter",
                addresses=True,
            ),
            Property("float32 without TF32", 0, READ_FP32, task.float32, 'say input_precision="ieee"', needs="a GPU"),
        ),
        suspects=task.suspects,
        compiles=Compiles(task.large_tiles, READ_FP32, products={80: "HMMA", 90: "HGMMA"}),
        cheap=Cheap(
            task.square,
            task.steps,
            (Tier(3, read=least, steps=1.1), Tier(1, read=4.0, written=4.0, steps=2.0)),
            f"a program loads each tile {'up to' if lower else 'from'} the diagonal {'' if lower else 'on '}once, "
            "one step for BLOCK_K columns, and stores its tile after the loop",
            READ_LOOP,
        ),
        vary=lambda varied: exercise(Triangle.of(varied)),
    )


EXERCISE = exercise(Triangle())
