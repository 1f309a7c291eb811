"""Small kernels on bfloat16 and 8-bit floats: what a GPU gives, recorded, for Triton's interpreter to be held to.

`python -m benchmarks.small_kernels` runs each in a process of its own on this GPU and adds its output to
benchmarks/results/small_kernels.json, a row for each kernel and version of Triton; tests/test_low_precision.py
runs the same kernels in the interpreter.
"""

import linecache
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from benchmarks import harness

NAME = "small_kernels"  # of the record
N = 1024  # numbers of an elementwise kernel
SIDE = 32  # rows and columns of a matrix
EVERY = 4  # of the outputs one in four is recorded

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "u32": torch.uint32,
    "i64": torch.int64,
}

_ELEMENTWISE = """
@triton.jit
def small_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    z = tl.load(z_ptr + offs)
    tl.store(out_ptr + offs, {expression})
"""

_MATRIX = """
@triton.jit
def small_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    rows = tl.arange(0, N)[:, None]
    columns = tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + rows * N + columns)
    y = tl.load(y_ptr + rows * N + columns)
    z = tl.load(z_ptr + rows * N + columns)
    tl.store(out_ptr + {where}, {expression})
"""

_ATOMIC = """
@triton.jit
def small_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.atomic_add(out_ptr + {where}, {expression})
"""


def kernel(source):
    """The ``@triton.jit`` function ``small_kernel`` of a text, which ``inspect`` finds again as it does a file's."""
    file = f"<small kernel {hash(source):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {"triton": triton, "tl": tl}
    exec(compile(source, file, "exec"), names)
    return names["small_kernel"]


@dataclass(frozen=True)
class Case:
    """``expression`` of x, y and z of the dtypes ``inputs``, stored into ``out``.

    ``tolerance`` is relative: to each number, and among plain numbers, whose sums cancel, to the largest.
    """

    name: str
    expression: str
    inputs: tuple[str, str, str]
    out: str
    body: str = _ELEMENTWISE
    where: str = "offs"
    tolerance: float = 0.0
    patterns: bool = True  # inputs of any bit pattern; else plain numbers about 1

    @property
    def source(self):
        return self.body.format(expression=self.expression, where=self.where)


def _same(name, expression, dtype, out=None, **more):
    return Case(f"{name} {dtype}", expression, (dtype,) * 3, out or dtype, **more)


def cases():
    """The kernels that are recorded."""
    bf = "bf16"
    for name, expression in {
        "add": "x + y",
        "subtract": "x - y",
        "multiply": "x * y",
        "negate": "-x",
        "absolute": "tl.abs(x)",
        "maximum": "tl.maximum(x, y)",
        "minimum": "tl.minimum(x, y)",
        "where": "tl.where(x < y, x, z)",
        "fma": "tl.fma(x, y, z)",
        "twice": "x * 2",
        "tenth": "x * 0.1",
        "one less": "x - 1",
        "clamp": "tl.clamp(x, y, z)",
        "from sixteen bits": "x.to(tl.uint16, bitcast=True).to(tl.bfloat16, bitcast=True)",
        "constant": "tl.full([N], 0.1, tl.bfloat16)",
    }.items():
        yield _same(name, expression, bf)
    for name, expression in {
        "divide": "x / y",
        "remainder": "x % y",
        "plus float32": "x + y.to(tl.float32)",
        "exponential": "tl.exp(x.to(tl.float32))",
    }.items():
        yield _same(name, expression, bf, "fp32", tolerance=5e-7, patterns=name != "remainder")
    for name, sign in {"less": "<", "less or equal": "<=", "equal": "==", "not equal": "!=", "greater": ">"}.items():
        yield _same(name, f"x {sign} y", bf, "i8")
    yield _same("fused multiply and add", "x * y + z", bf, tolerance=2**-7, patterns=False)
    for name in ("fp32", "fp16", "i32", "i64", "i8", "u8"):
        yield Case(f"bf16 to {name}", "x", (bf, bf, bf), name)
    for name in ("i32", "i64", "i8", "u8", "u32"):
        yield Case(f"fp32 to {name}", "x", ("fp32",) * 3, name)
    for name in ("fp32", "fp16", "fp64", "i32", "i64", "i8", "u8"):
        yield Case(f"{name} to bf16", "x", (name,) * 3, bf)
    yield Case("fp32 to bf16, to zero", 'x.to(tl.bfloat16, fp_downcast_rounding="rtz")', ("fp32",) * 3, bf)
    yield Case("bf16 plus fp16", "x + y", (bf, "fp16", bf), "fp16")
    for small, language in (("e4m3", "tl.float8e4nv"), ("e5m2", "tl.float8e5")):
        for name in ("fp32", "fp16", "bf16"):
            yield Case(f"{small} to {name}", "x", (small,) * 3, name)
            yield Case(f"{name} to {small}", f"x.to({language})", (name,) * 3, small)
        yield Case(f"i32 to {small}", f"x.to({language})", ("i32",) * 3, small)
        yield Case(f"{small} to i32", "x", (small,) * 3, "i32", patterns=False)
        yield Case(f"fp64 to {small}", f"x.to({language})", ("fp64",) * 3, small)
        yield _same("copy", "x", small)
        yield _same("add", "x + y", small)
        yield _same("negate", "-x", small)
        yield _same("absolute", "tl.abs(x)", small)
        yield _same("less", "x < y", small, "i8")
        yield _same("where", "tl.where(x.to(tl.float32) < y.to(tl.float32), x, z)", small)
        yield _same("twice", "x * 2", small)
        yield _same("plus bf16", "x + y.to(tl.bfloat16)", small, "bf16")
        yield _same("constant", f"tl.full([N], 0.3, {language})", small)
        yield _same("zero", f"tl.zeros([N], {language})", small)
    yield Case("fp16 to e5m2, to zero", 'x.to(tl.float8e5, fp_downcast_rounding="rtz")', ("fp16",) * 3, "e5m2")
    yield Case("fp32 to e5m2, to zero", 'x.to(tl.float8e5, fp_downcast_rounding="rtz")', ("fp32",) * 3, "e5m2")
    matrix = dict(body=_MATRIX, patterns=False, out="fp32")
    for dtype in (bf, "e4m3", "e5m2"):
        yield _same("product", "tl.dot(x, y)", dtype, where="rows * N + columns", tolerance=1e-5, **matrix)
        yield _same("sum of float32", "tl.sum(x.to(tl.float32), 1)", dtype, where="tl.arange(0, N)", tolerance=1e-6, **matrix)
    yield _same("product of sums", "tl.dot(x, y, z.to(tl.float32))", bf, where="rows * N + columns", tolerance=1e-5, **matrix)
    yield _same("sum", "tl.sum(x, 1)", bf, where="tl.arange(0, N)", tolerance=2**-6, **matrix)
    yield _same("sum of a column", "tl.sum(x, 0)", bf, where="tl.arange(0, N)", tolerance=2**-6, **matrix)
    yield _same("largest", "tl.max(x, 1)", bf, where="tl.arange(0, N)", **matrix)
    yield _same("smallest", "tl.min(x, 0)", bf, where="tl.arange(0, N)", **matrix)
    yield _same("where largest", "tl.argmax(x, 1)", bf, where="tl.arange(0, N)", **matrix)
    yield _same("running sum", "tl.cumsum(x, 1)", bf, where="rows * N + columns", tolerance=2**-6, **matrix)
    yield _same("sorted", "tl.sort(x)", bf, where="rows * N + columns", **matrix)
    yield _same("atomic sum", "x", bf, body=_ATOMIC, where="offs")
    yield _same("atomic sum of neighbours", "x", bf, body=_ATOMIC, where="offs // 2", tolerance=2**-7, patterns=False)


def numbers(dtype, seed, count, patterns):
    """Deterministic numbers on the CPU: half of them any bit pattern (with ``patterns``), the others about 1."""
    draw = np.random.RandomState(seed)  # its stream is frozen
    torch_dtype = DTYPES[dtype]
    plain = torch.from_numpy(draw.standard_normal(count) * (1 if torch_dtype.is_floating_point else 50))
    if dtype == "u8":
        plain = plain.abs()
    plain = plain.to(torch_dtype)
    if not patterns:
        return plain
    size = torch_dtype.itemsize
    bits = torch.from_numpy(draw.randint(0, 256, (count // 2, size)).astype(np.uint8)).view(torch_dtype).reshape(-1)
    return torch.cat([bits, plain[count // 2 :]])


def run(case, device):
    """One in ``EVERY`` of the outputs, on the CPU."""
    count = SIDE * SIDE if case.body is _MATRIX else N
    x, y, z = (numbers(dtype, seed, count, case.patterns).to(device) for seed, dtype in enumerate(case.inputs))
    out = torch.zeros(count, dtype=DTYPES[case.out], device=device)
    kernel(case.source)[(1,)](x, y, z, out, N=SIDE if case.body is _MATRIX else N)
    return out.cpu()[::EVERY].clone()


def _in_child(name):
    case = next(case for case in cases() if case.name == name)
    try:
        return run(case, "cuda").view(torch.uint8).numpy().tobytes().hex()
    except Exception as error:
        return f"refused: {type(error).__name__}: {str(error).strip().splitlines()[-1][:160]}"


def _guarded(name):
    """A compiler that aborts takes a child with it, and nothing else."""
    pool = multiprocessing.get_context("spawn").Pool(1)
    try:
        return pool.apply_async(_in_child, (name,)).get(60)
    except multiprocessing.TimeoutError:
        return "refused: the compiler ends the process"
    finally:
        pool.terminate()


def main():
    names = [case.name for case in cases()]
    with ThreadPoolExecutor(14) as threads:
        outputs = list(threads.map(_guarded, names))
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    machine, version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else harness.RESULTS
    rows = (harness.read(NAME, folder) or {"rows": []})["rows"]
    rows = [row for row in rows if row["triton"] != triton.__version__]
    rows += [
        dict(triton=triton.__version__, torch=torch.__version__, gpu=machine, driver=version, kernel=name, output=output)
        for name, output in zip(names, outputs)
    ]
    harness.write(NAME, {"rows": rows}, folder)
    for name, output in zip(names, outputs):
        print(name, output if output.startswith("refused") else output[:32])


if __name__ == "__main__":
    main()
