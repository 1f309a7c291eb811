"""Launch a kernel on the model: every program of a grid, under one schedule or under several."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from triton.experimental.gluon import GluonJITFunction
from triton.runtime.jit import JITFunction

from kernels.common.lines import wrapped
from kernels.gluon_model.engines import Descriptor
from kernels.gluon_model.findings import Finding, Findings
from kernels.gluon_model.machine import Machine
from kernels.gluon_model.programs import Programs
from kernels.gluon_model.races import Lanes
from kernels.gluon_model.schedule import SCHEDULES, EndlessLoop, Policy, Stopped
from kernels.gluon_model.source import Locator
from kernels.gluon_model.substitution import Substitution
from kernels.gluon_model.values import ModelError, wrap_argument

_KEPT = 16  # programs whose logs and memory a result keeps
_LAUNCH_OPTIONS = {"num_stages", "maxnreg"}
_MOST_CTAS = 16  # of a cluster, on Hopper


@dataclass(eq=False, repr=False)
class Result:
    """What a run on the model found. ``print(result)`` reads it out.

    kernel, grid, schedule: what was run. findings: everything that is wrong, most basic first; empty if nothing is.
    completed: whether every program came to its end. machines: those of the first 16 programs and of one that did not
    end, with their logs, for ``picture``, ``state`` and ``player``. ctas: of the cluster that a program is.
    """

    kernel: str
    grid: tuple[int, ...]
    schedule: str
    findings: list[Finding] = field(default_factory=list)
    completed: bool = True
    machines: list[Machine] = field(default_factory=list)
    ctas: int = 1

    @property
    def ok(self) -> bool:
        """Whether the kernel came to its end and nothing was found."""
        return self.completed and not self.findings

    @property
    def launched(self) -> str:
        """How many programs ran, of how many CTAs if several."""
        grid = f"grid {' × '.join(map(str, self.grid))}"
        return grid if self.ctas == 1 else f"{grid} in clusters of {self.ctas} CTAs"

    def __str__(self) -> str:
        title = f"{self.kernel}, {self.launched}, schedule {self.schedule}: "
        if self.ok:
            return wrapped(title + "no finding.")
        count = f"{len(self.findings)} finding{'s' if len(self.findings) != 1 else ''}"
        told = (f"{n}. {finding.text}" for n, finding in enumerate(self.findings, 1))
        return wrapped("\n\n".join([title + count, *told]))

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))

    def picture(
        self,
        program: int = 0,
        first: int = 0,
        last: int | None = None,
        cursor: int | None = None,
        *,
        alt: str | None = None,
    ):
        """The timeline of one program as a static figure: partitions, operations in flight, buffers, step by step.

        program: its place in the order in which programs ran. first, last: the steps to draw, all without them.
        cursor: a step to mark. alt: what it looks like, for whoever cannot see it, instead of a text made from the run.
        """
        from kernels.gluon_model import picture

        return picture.timeline(self.machines[program], first, last, cursor, alt)

    def state(self, step: int, program: int = 0) -> str:
        """Where each partition is at a step, what is in flight, and how every barrier and buffer stands, as text."""
        from kernels.gluon_model import picture

        return picture.state(self.machines[program], step)

    def player(self, program: int = 0):
        """A slider that steps through one program; ``picture(cursor=step)`` and ``state(step)`` are its static twins."""
        from kernels.gluon_model import picture

        return picture.player(self.machines[program])


@dataclass(repr=False)
class Sweep:
    """What several schedules found, together. ``print(sweep)`` reads it out.

    results: by schedule. findings: those of all schedules, each once. same: whether all schedules left the same bits
    in the tensors; None when one of them did not come to its end.
    """

    results: dict[str, Result]
    findings: list[Finding]
    same: bool | None

    @property
    def ok(self) -> bool:
        """Whether no schedule found anything and all left the same bits."""
        return bool(self.same) and all(result.ok for result in self.results.values())

    def __str__(self) -> str:
        first = next(iter(self.results.values()))
        title = f"{first.kernel}, {first.launched}, {len(self.results)} schedules: "
        if self.ok:
            return wrapped(title + "no finding, same bits.")
        lines = [title + f"{len(self.findings)} findings"]
        for finding in self.findings:
            names = [n for n, result in self.results.items() if any(_same(f, finding) for f in result.findings)]
            lines.append(
                f"{finding.text}\n  Found under {'every schedule' if len(names) == len(self.results) else ', '.join(names)}."
            )
        if self.same is False:
            lines.append("The schedules do not leave the same numbers.")
        return wrapped("\n\n".join(lines))

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))


def _same(a: Finding, b: Finding) -> bool:
    return _mistake(a) == _mistake(b)


def _mistake(finding: Finding) -> tuple:
    """What two schedules may both find, be it in another CTA."""
    return finding.kind, finding.partition.partition(" of CTA ")[0], finding.place


class _Run:
    """What the programs of one launch share."""

    def __init__(self, name: str, grid: tuple[int, ...]):
        self.name, self.grid, self.locator, self.findings = name, grid, Locator(), Findings()
        self.lanes = Lanes()
        self.programs: Programs | None = None


def run(
    kernel,
    grid,
    *args,
    schedule: str = "round-robin",
    seed: int = 0,
    num_warps: int = 4,
    num_ctas: int = 1,
    most_steps: int = 1_000_000,
    **constexprs,
) -> Result:
    """Execute a ``@gluon.jit`` kernel's own source on the CPU and report its deadlocks and races.

    kernel: the decorated function. grid: the number of programs, an int or a tuple of up to three; programs run one
    after the other. args: the launch's arguments in order: CPU tensors, NumPy arrays, numbers, ``TensorDescriptor`` and
    ``TensorDescriptorIm2Col`` on CPU tensors, constants; what the kernel stores is in the tensors afterwards.
    schedule: "round-robin", "greedy", "eager" or "random" (from ``seed``), who goes next where several could; it
    changes what is executed, and not what is found. num_warps: of the kernel. num_ctas: of a program's cluster, a power of
    two. most_steps: an endless loop ends there. constexprs: the remaining parameters by name (and ``num_stages``,
    ``maxnreg``, which are ignored).

    Returns a ``Result``. Raises ``ValueError`` for arguments that don't fit the kernel, ``ModelError`` with the line for
    an operation that has no meaning or is not modelled.
    """
    if not isinstance(kernel, GluonJITFunction):
        raise ValueError(f"kernel is {kernel!r}: the model runs @gluon.jit functions")
    if Machine.current is not None:
        raise RuntimeError("a kernel is running on the model already")
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    if not 1 <= len(grid) <= 3 or any(not isinstance(n, int) or n < 0 for n in grid):
        raise ValueError(f"grid is {grid!r}: it must be one to three numbers of programs")
    if num_ctas not in (1 << n for n in range(_MOST_CTAS.bit_length())):
        raise ValueError(f"num_ctas is {num_ctas!r}: it must be a power of two, {_MOST_CTAS} at most")
    constexprs = {name: value for name, value in constexprs.items() if name not in _LAUNCH_OPTIONS}
    shared = _Run(kernel.fn.__name__, grid)
    substitution = Substitution(shared.locator)
    function = substitution.of(kernel)
    arguments = _arguments(kernel, args, constexprs, substitution)
    policy = Policy(schedule, seed)
    name = f"{schedule}, seed {seed}" if schedule == "random" else schedule
    result = Result(shared.name, grid, name, ctas=num_ctas)

    def execute(program) -> bool:
        machine = Machine(shared, program, copy.copy(policy), num_warps, most_steps, num_ctas)
        completed = _execute(machine, function, arguments)
        result.completed &= completed
        machine.conflicts.finish(completed)
        if len(result.machines) < _KEPT or not completed:
            result.machines.append(machine)
        return completed

    programs = itertools.product(*(range(n) for n in reversed((*grid, 1, 1)[:3])))
    shared.programs = Programs((tuple(reversed(program)) for program in programs), execute, schedule, seed)
    shared.programs.run()
    result.findings = list(shared.findings)
    return result


def _execute(machine: Machine, function, arguments: dict) -> bool:
    """Run one program; whether it came to its end."""
    Machine.current = machine
    try:
        machine.execute(functools.partial(function, **arguments))
    except EndlessLoop as error:
        raise ModelError(str(error)) from None
    except Stopped:
        return False
    except Exception as error:
        place = _place_of(error, machine)
        raise ModelError(
            f"{place}{'' if isinstance(error, ModelError) else type(error).__name__ + ': '}{error}"
        ) from error
    finally:
        Machine.current = None
    return True


def _place_of(error: Exception, machine: Machine) -> str:
    """The kernel's innermost line on an error's way, as the beginning of a message."""
    place, trace = "", error.__traceback__
    while trace is not None:
        found = machine.run.locator.of(trace.tb_frame, trace.tb_lasti)
        place = f"{found.where}: {found.text}\n  " if found else place
        trace = trace.tb_next
    return place


def _arguments(kernel, args, constexprs: dict, substitution: Substitution) -> dict:
    try:
        bound = inspect.signature(kernel.fn).bind(*args, **constexprs)
    except TypeError as error:
        raise ValueError(f"args do not fit {kernel.fn.__name__}{inspect.signature(kernel.fn)}: {error}") from None
    bound.apply_defaults()
    constants = {param.name for param in kernel.params if param.is_constexpr}
    return {
        name: substitution.of(value) if name in constants else _argument(name, value)
        for name, value in bound.arguments.items()
    }


def _argument(name: str, value):
    return Descriptor.of(name, value) if hasattr(value, "block_shape") else wrap_argument(name, value, _argument)


def check_all_schedules(kernel, grid, *args, schedules=None, **options) -> Sweep:
    """Run a kernel under several schedules, each on its own copy of the tensors, and merge what they find.

    schedules: names, or (name, seed) pairs; without it all four, "random" with two seeds. The other arguments are
    those of ``run``. The last schedule runs on the tensors themselves, so the kernel's results are in them.
    """
    chosen = schedules or [*(name for name in SCHEDULES if name != "random"), ("random", 0), ("random", 1)]
    pairs = [(one, 0) if isinstance(one, str) else tuple(one) for one in chosen]
    results, contents = {}, []
    for n, (schedule, seed) in enumerate(pairs):
        own = args if n == len(pairs) - 1 else copy.deepcopy(args, {id(f): f for f in _functions(args)})
        result = run(kernel, grid, *own, schedule=schedule, seed=seed, **options)
        results[result.schedule] = result
        contents.append([tensor for arg in own for tensor in _tensors(arg)])
    findings = {}
    for result in results.values():
        for finding in result.findings:
            findings.setdefault(_mistake(finding), finding)
    same = all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for c in contents[1:] for a, b in zip(contents[0], c)
    )
    ended = all(result.completed for result in results.values())
    return Sweep(results, list(findings.values()), same if ended else None)


def _functions(arg):
    """The functions among a launch's arguments, which have no copies."""
    if isinstance(arg, JITFunction):
        yield arg
    elif isinstance(arg, tuple):
        for member in arg:
            yield from _functions(member)


def _tensors(arg):
    if isinstance(arg, np.ndarray):
        arg = torch.from_numpy(arg)
    if isinstance(arg, torch.Tensor):
        yield arg.detach().contiguous().reshape(-1)
    elif isinstance(arg, tuple):
        for member in arg:
            yield from _tensors(member)
    elif hasattr(arg, "block_shape"):
        yield from _tensors(arg.base)


@contextlib.contextmanager
def executing(**options):
    """Inside this block ``kernel[grid](...)`` of a Gluon kernel runs on the model; yields the list of results.

    options: ``schedule``, ``seed`` and ``most_steps`` as for ``run``. So a host function that makes descriptors and
    launches a kernel can be called on CPU tensors as it stands.
    """
    results: list[Result] = []
    original = GluonJITFunction.run

    def launch(self, *args, grid, warmup=False, **kwargs):
        if callable(grid):
            own = {name: value for name, value in kwargs.items() if name in self.arg_names}
            grid = grid(inspect.signature(self.fn).bind_partial(*args, **own).arguments)
        results.append(run(self, grid, *args, **options, **kwargs))

    GluonJITFunction.run = launch
    try:
        yield results
    finally:
        GluonJITFunction.run = original
