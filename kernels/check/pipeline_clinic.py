"""The checks of exercise 09: mended pipelines, run on the model of Gluon under every schedule.

A kernel must come to its end with the right numbers, and nothing may be found in it, whatever the order of events. What
is wrong is the model's own finding: which partition, which line, which barrier; and the step of the lesson that explains it.
"""

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.check.compiling import compiled, refusal
from kernels.check.framework import VERDICTS, Draw, Finding, explain
from kernels.lab.compile_report import prepare

#: What each kind of finding of the model usually means, and what to read again.
MEANINGS = {
    "byte count": ("expect announces exactly what the copies of this phase bring", "step 3"),
    "missing fence": ("fence_async_shared stands between ordinary stores and the arrival that announces them", "step 3"),
    "missing wait": ("the sums are in the accumulator once warpgroup_mma_wait has returned", "step 4"),
    "early read": ("wait for the barrier that this copy completes before you read", "step 2"),
    "wrong phase": ("another round than the one that is meant lets this wait pass: the parity turns once a round", "step 2"),
    "early overwrite": ("a buffer is free when its last reader is done and has said so on a barrier", "step 8"),
    "race": ("one arrives after its access, the other waits before its own", "step 8"),
    "order of sums": ("let each addition wait for the one before it: sums of floats depend on their order", "step 8"),
    "uninitialized": ("wait for the barrier of what fills this memory before you read", "step 2"),
    "barrier": ("init asks for as many arrivals as come in a phase, no more and no fewer", "step 2"),
    "out of bounds": ("mask what lies past the end", "step 4"),
    "unfinished": ("nobody waits for it: see whether both sides count the same steps", "step 2"),
    "deadlock": ("nobody does what this wait asks for: see who should signal it, and which phase is meant", "step 7"),
}  # fmt: skip
#: What the model says of a barrier whose two sides have lost each other, mostly because of another finding.
CONSEQUENCES = ("nothing keeps the barrier from", "without knowing that phase", "more often than it was initialized")
LESSON = "Lesson 50, "
GIVEN = ("ask", "store_tile")  # functions that the exercise gives
TALLIED = ("wait", "expect", "issue", "arrive")
ACTIONS = {"wait", "expect", "issue", "arrive", "read", "write"}  # what a partition of a pipeline does in its log


class Launch(NamedTuple):
    """One launch on the model: its arguments, the tensor that it fills, what must be in it, and its sizes as text."""

    grid: int
    args: tuple
    out: torch.Tensor
    expected: torch.Tensor
    sizes: str


@dataclass(frozen=True)
class Property:
    """Launches that must be right under every schedule; ``lesson``: what to read where only the numbers are wrong."""

    name: str
    points: int
    lesson: str
    launches: Callable[[Draw], Iterable[Launch]]


class Compiled(NamedTuple):
    """A launch as Hopper wants it, and instructions that must stand in its code, with how often at least."""

    args: Callable[[], tuple]
    instructions: dict[str, int]
    lesson: str
    points: int = 2


class Tallied(NamedTuple):
    """What a launch may cost: waits, arrivals, copies and products, all together, for each step of the lesson's kernel.

    ``tiers`` are (points, multiple of ``each``), the best one first.
    """

    launch: Callable[[Draw], Launch]
    steps: int
    each: int
    lesson: str
    tiers: tuple[tuple[int, float], ...] = ((3, 1.1), (1, 2.0))


@dataclass(frozen=True)
class Pipeline:
    """A kernel of the clinic, and what must hold for it."""

    name: str
    missing: str
    properties: tuple[Property, ...]
    compiles: Compiled
    cheap: Tallied

    @property
    def worth(self) -> dict[str, int]:
        """The most that each verdict can earn."""
        right = sum(item.points for item in self.properties)
        return {"right": right, "compiles": self.compiles.points, "cheap": self.cheap.tiers[0][0]}

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return sum(self.worth.values())

    def terms(self) -> str:
        """The row of this kernel in the exercise's table of points."""
        cheap = "; ".join(f"{points}: up to {times:g} × the operations" for points, times in self.cheap.tiers)
        return f"| `{self.name}` | {self.worth['right']} | {self.compiles.points} | {cheap} |"


class _Wrong(NamedTuple):
    where: str
    amount: str
    cause: str
    lesson: str
    story: str = ""  # the model's whole finding


def check(pipeline: Pipeline, kernel, *, seed=0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Hold ``kernel`` to every property of ``pipeline``, print one line a property, return the points earned.

    ``seed``, ``grading`` and ``verdicts`` as for the other checks. A learner's error is explained, never raised.
    ``kernel`` may stand for one in another process: then it has a ``model``, which runs it there, and a ``prepare``, which is
    ``compile_report.prepare`` there.
    """
    verdicts = (verdicts,) if isinstance(verdicts, str) else tuple(verdicts)
    worth = {name: points for name, points in pipeline.worth.items() if name in verdicts}
    if grading is None:
        grading = os.environ.get("KERNELS_GRADING") == "1"
        seed = None if grading else seed
    seed = secrets.randbits(32) if seed is None else seed
    try:
        from kernels import gluon_model
    except ImportError as error:
        print(f"not verified on this machine: {error}")
        return 0
    gluon_model = getattr(kernel, "model", gluon_model)
    draw = Draw(f"{seed}, {pipeline.name}", grading)
    if _is_idle(gluon_model, kernel, next(iter(pipeline.properties[0].launches(draw)))):
        print(f"missing: {pipeline.missing}")
        print(f"{pipeline.name}: 0 of {sum(worth.values())} points")
        return 0
    earned = dict.fromkeys(worth, 0)
    if "right" in worth:
        earned["right"] = _right(gluon_model, pipeline, kernel, seed, grading)
    if "compiles" in worth and earned.get("right") != 0:
        earned["compiles"] = _compiles(pipeline.compiles, kernel)
    if "cheap" in worth and earned.get("right") != 0:
        earned["cheap"] = _cheap(gluon_model, pipeline, kernel, Draw(f"{seed}, {pipeline.name}, cheap", grading))
    drawn = f" (graded with seed {seed})" if grading else ""
    parts = ", ".join(f"{name} {points} of {worth[name]}" for name, points in earned.items())
    several = f" ({parts})" if len(worth) > 1 else ""
    print(f"{pipeline.name}: {sum(earned.values())} of {sum(worth.values())} points{several}{drawn}")
    return sum(earned.values())


def _compiles(spec: Compiled, kernel) -> int:
    """The line of the verdict "compiles", and its points."""
    try:
        elsewhere = getattr(kernel, "prepare", None)
        prepared = elsewhere() if elsewhere else prepare(kernel, *spec.args())
    except Exception as raised:
        said, means = getattr(raised, "explained", None) or explain(raised, GIVEN)
        print(f"FAILED  compiles: the launch cannot be compiled, {said}: {means}. {spec.lesson}.")
        return 0
    made = compiled(prepared, (90,))
    if isinstance(made, str):
        finding = refusal(prepared.kernel, made, "for sm_90")
    elif made[90].spill_bytes:
        where = f"{prepared.kernel} spills {made[90].spill_bytes} bytes a thread on sm_90"
        finding = Finding(where, "with 3 buffers", "a partition has fewer registers than its blocks need")
    else:
        lacking = [name for name, most in spec.instructions.items() if made[90].count(name) < most]
        if not lacking:
            print(f"passed  compiles ({spec.points} points)")
            return spec.points
        finding = Finding(
            f"too few {lacking[0]} stand in the code", "for sm_90", "a copy or a product is not made there"
        )
    print(f"FAILED  compiles: {finding.where}, {finding.amount}: {finding.cause}. {spec.lesson}.")
    return 0


def _cheap(gluon_model, pipeline: Pipeline, kernel, draw: Draw) -> int:
    """The line of the verdict "cheap", and its points."""
    spec = pipeline.cheap
    launch = spec.launch(draw)
    if wrong := _judge(gluon_model, Property("cheap", 0, spec.lesson, lambda draw: ()), kernel, launch):
        print(f"FAILED  cheap: {wrong.where}: only a right kernel is cheap or dear. {spec.lesson}.")
        return 0
    (machine, *_) = gluon_model.run(kernel, launch.grid, *launch.args).machines
    counted = Counter((event.who, event.kind) for event in machine.events if event.kind in TALLIED)
    times = counted.total() / (spec.each * spec.steps)
    points = next((points for points, most in spec.tiers if times <= most), 0)
    if points == spec.tiers[0][0]:
        print(f"passed  cheap ({points} points)")
        return points
    (who, kind), count = counted.most_common(1)[0]
    some = f"{points} of {spec.tiers[0][0]} points: " if points else ""
    said = f"{times:.3g} times the waits, arrivals, copies and products that the steps need"
    said += f", and {spec.tiers[0][1]} times may be"
    most = f"most by {who} ({count} × {kind}) with {launch.sizes}"
    cause = "each step waits once for what it takes, and signals once what it leaves"
    print(f"FAILED  cheap: {some}{said}, {most}: {cause}. {spec.lesson}.")
    return points


def _right(gluon_model, pipeline: Pipeline, kernel, seed, grading) -> int:
    """Every property's line, and the points of all."""
    earned, seen = 0, {}
    for item in pipeline.properties:
        draw = Draw(f"{seed}, {pipeline.name}, {item.name}", grading)
        wrong = next(filter(None, (_judge(gluon_model, item, kernel, launch) for launch in item.launches(draw))), None)
        if wrong is None:
            earned += item.points
            print(f"passed  {item.name} ({item.points} point{'s' * (item.points != 1)})")
        elif wrong.where in seen:
            print(f'FAILED  {item.name}: {wrong.where}, as in "{seen[wrong.where]}".')
        else:
            print(f"FAILED  {item.name}: {wrong.where}, {wrong.amount}: {wrong.cause}. {wrong.lesson}.")
            print("".join(f"        {line}\n" for line in wrong.story.splitlines()), end="")
            seen[wrong.where] = item.name
    return earned


def _is_idle(gluon_model, kernel, launch: Launch) -> bool:
    """Whether some partition of the kernel does nothing at all, as the gaps of the unsolved exercise do."""
    try:
        (machine,) = gluon_model.run(kernel, launch.grid, *launch.args).machines
    except Exception:  # an error in the learner's lines, which the properties will meet again and explain
        return False
    busy = {event.who for event in machine.events if event.kind in ACTIONS}
    return any(partition.name not in busy for partition in machine.everybody[1:])


def _judge(gluon_model, item: Property, kernel, launch: Launch) -> _Wrong | None:
    """Run one launch under every schedule."""
    amount = f"with {launch.sizes}"
    try:
        sweep = gluon_model.check_all_schedules(kernel, launch.grid, *launch.args, most_steps=100_000)
    except Exception as raised:
        said, means = getattr(raised, "explained", None) or explain(raised, GIVEN)
        return _Wrong("an error", f"{amount}: {said}", means, item.lesson)
    if sweep.findings:
        first = min(sweep.findings, key=_rank)
        cause, step = MEANINGS[first.kind]
        at = f" at {first.barrier}" if first.barrier else ""
        where = f"{first.kind}{at} in line {first.place.line} of {first.partition}, `{first.place.text}`"
        return _Wrong(where, amount, cause, LESSON + step, first.message)
    wrong = ~torch.isclose(launch.out.double(), launch.expected, rtol=1e-3, atol=1e-3)
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        got, answer = launch.out[tuple(at)].item(), launch.expected[tuple(at)].item()
        where = f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong"
        amount = f"the first at {at}: {got:.4g} for {answer:.4g}, {amount}"
        return _Wrong(
            where, amount, "every wait is in order, so look at which tile goes where, and at the sums", item.lesson
        )
    return None


def _rank(finding) -> tuple:
    """Causes first, and of those the one that showed first: the model's findings come in that order."""
    last = finding.kind in ("unfinished", "deadlock")
    return last, any(text in finding.message for text in CONSEQUENCES)


# The kernels of the clinic.


def _described(x: torch.Tensor, *block: int):
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    dtype = {torch.float16: gl.float16, torch.float32: gl.float32}[x.dtype]
    return TensorDescriptor.from_tensor(x, list(block), gl.NVMMASharedLayout.get_default_for(list(block), dtype))


def _layout(kind: str):
    from triton.experimental.gluon import language as gl

    if kind == "rows":
        return gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])


def relay(draw: Draw, stages: int, steps: int, rows: int = 16, cut: int = 0) -> Launch:
    """y = x² in tiles of 16 × 16; ``cut``: columns that the last tile lacks."""
    width = 16 * steps - cut
    x, y = draw.normal(rows, width), torch.full((rows, width), float("nan"))
    args = _described(x, 16, 16), _described(y, 16, 16), width, _layout("rows"), stages
    sizes = f"STAGES = {stages}, steps = {steps}, elements = {rows} × {width}"
    return Launch(-(-rows // 16), args, y, x.double() ** 2, sizes)


def product(draw: Draw, stages: int, M: int, N: int, K: int, programs: int = 1) -> Launch:
    """c = a · b in tiles of 32 × 32, 16 along K."""
    a, b = draw.normal(M, K, dtype=torch.float16), draw.normal(K, N, dtype=torch.float16)
    c = torch.full((M, N), float("nan"))
    args = _described(a, 32, 16), _described(b, 16, 32), c, M, N, K, _layout("product"), stages
    tiles, steps = -(-M // 32) * -(-N // 32), -(-K // 16)
    sizes = f"STAGES = {stages}, tiles = {tiles}, steps of each = {steps}, programs = {programs}"
    return Launch(programs, args, c, a.double() @ b.double(), sizes)


def _rounds(draw: Draw, stages: int) -> int:
    """Steps in which a ring turns three times and a bit."""
    return 3 * stages + draw.size(1, 1, 2)


def _relay_on_hopper() -> tuple:
    x = torch.zeros(64, 256)
    return _described(x, 16, 64), _described(x, 16, 64), 256, _layout("rows"), 3


def _product_on_hopper(rows: int) -> tuple:
    a, b, c = torch.zeros(256, 256).half(), torch.zeros(256, 256).half(), torch.zeros(256, 256)
    return _described(a, rows, 64), _described(b, 64, 32), c, 256, 256, 256, _layout("product"), 3


RELAY = Pipeline(
    "mended_relay",
    "the worker does nothing yet. It needs waits, a read, a store and arrivals.",
    (
        Property("first round", 3, "Lesson 50, step 2", lambda draw: [relay(draw, 3, 3), relay(draw, 3, 2)]),
        Property(
            "three rounds",
            3,
            "Lesson 50, step 2",
            lambda draw: [relay(draw, stages, _rounds(draw, stages)) for stages in (2, 3)],
        ),
        Property("a ring of one", 2, "Lesson 50, step 1", lambda draw: [relay(draw, 1, _rounds(draw, 1))]),
        Property(
            "ragged ends",
            2,
            "Lesson 50, step 3",
            lambda draw: [relay(draw, 2, 5, rows=draw.size(20, 17, 31), cut=draw.size(4, 4, 12, multiple_of=4))],
        ),
    ),
    Compiled(_relay_on_hopper, {"UTMALDG": 1, "UTMASTG": 1}, "Lesson 50, step 3"),
    Tallied(lambda draw: relay(draw, 2, 5), 5, 11, "Lesson 50, step 2"),
)


def _one_tile(draw: Draw) -> list[Launch]:
    return [product(draw, 3, 32, 32, 48), product(draw, 3, 32, 32, 32)]


def _many_steps(draw: Draw) -> list[Launch]:
    return [product(draw, stages, 32, 32, 16 * _rounds(draw, stages)) for stages in (1, 2, 3)]


def _many_tiles(draw: Draw) -> list[Launch]:
    steps = draw.size(3, 3, 5, but_not_of=4)
    return [
        product(draw, 2, 96, 64, 16 * steps),
        product(draw, 3, 64, 96, 16 * steps, programs=2),
        product(draw, 2, 32, 128, 16),
    ]


def _ragged(draw: Draw) -> list[Launch]:
    sizes = draw.size(50, 33, 63), draw.size(40, 40, 56, multiple_of=8), draw.size(72, 72, 88, multiple_of=8)
    return [product(draw, 2, *sizes), product(draw, 3, *sizes, programs=3)]


TILES = Pipeline(
    "mended_tiles",
    "loader or multiplier does nothing yet. Both need a loop over tiles, and one over steps.",
    (
        Property("one tile", 2, "Lesson 50, step 4", _one_tile),
        Property("more steps than buffers", 2, "Lesson 50, step 2", _many_steps),
        Property("several tiles", 4, "Lesson 50, step 4", _many_tiles),
        Property("ragged ends", 2, "Lesson 50, step 4", _ragged),
    ),
    Compiled(lambda: _product_on_hopper(64), {"UTMALDG": 2, "HGMMA": 4}, "Lesson 50, step 4"),
    Tallied(lambda draw: product(draw, 2, 64, 64, 80), 20, 8, "Lesson 50, step 4"),
)


HALVES = Pipeline(
    "mended_halves",
    "the multipliers do nothing yet. They need waits, a product and a release.",
    (
        Property("first round", 3, "Lesson 50, step 4", _one_tile),
        Property(
            "three rounds",
            5,
            "Lesson 50, step 6",
            lambda draw: [product(draw, stages, 32, 32, 16 * _rounds(draw, stages)) for stages in (2, 3)],
        ),
        Property(
            "ragged ends",
            2,
            "Lesson 50, step 4",
            lambda draw: [product(draw, 2, draw.size(20, 17, 31), 24, draw.size(72, 72, 88, multiple_of=8))],
        ),
    ),
    Compiled(lambda: _product_on_hopper(128), {"UTMALDG": 2, "HGMMA": 8}, "Lesson 50, step 4"),
    Tallied(lambda draw: product(draw, 2, 32, 32, 80), 5, 12, "Lesson 50, step 6"),
)
