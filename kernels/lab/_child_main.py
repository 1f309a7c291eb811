"""What the children of ``_child.py`` do, each one job: compile an exported kernel, disassemble what came out, or trace the
kernel in the interpreter.

Run as a script, with a folder for its children's files, it reads jobs, forks a child for each, and answers with what the
child left. So a child may die, and starts with what was imported before: Triton, and torch once a child needed it, which a
kernel from a notebook's cell does not. It must not import ``kernels`` itself: a child sees that package as it is now.

A job is a line of JSON, ``["compile", "disassemble" or "trace", working directory, m, n]``, m bytes, the text of the kernel's
module, and n bytes, its details pickled. An answer is a line ``[exit status, last words, n]``, and n bytes: JSON, as
somebody else's text may have had a hand in it, and of a trace, which is only ever one's own, a pickle.
"""

import base64
import contextlib
import ctypes
import gc
import hashlib
import importlib.util
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

COMPILER_BYTES = 4 << 30  # what one compilation may take
IDLE_SECONDS = 300  # without a job for so long, it leaves
ANSWER_BYTES = 1 << 30  # what is read of an answer: a traced launch brings its tensors back


def main(job: str, folder: Path, details: dict) -> None:
    """Do the job in ``folder`` and leave the answer there."""
    try:
        spec = importlib.util.spec_from_file_location("exported_kernel", folder / "exported_kernel.py")
        module = sys.modules["exported_kernel"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        answer = {"compile": compile_all, "disassemble": disassemble, "trace": trace}[job](module, details, folder)
    except Exception as error:  # whatever goes wrong is the answer: the parent raises it
        answer = {"error": f"{type(error).__name__}: {error}".strip()}
    content = pickle.dumps(answer) if job == "trace" else json.dumps(answer, default=encoded).encode()
    (folder / "answer").write_bytes(content)


def encoded(binary: bytes) -> dict:
    """Bytes in JSON."""
    return {"base64": base64.b64encode(binary).decode()}


def serve(place: str, alone: bool) -> None:
    """Do the jobs that come in, each in a folder of its own in ``place``, until there are no more.

    alone: in a process namespace that is this process's, where nothing that a child started may outlive its job.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    if alone:
        if os.getpid() > 3:
            raise SystemExit("--alone is for a process namespace of its own: there are others' processes here")
        keep_out()
    gc.disable()  # nothing of what is imported is ever garbage; a child looks among its own things alone
    import triton.compiler
    import triton.experimental.gluon._runtime  # noqa: F401
    from triton.runtime import cache

    if "TRITON_CACHE_DIR" in os.environ:
        cache.triton_key()  # reads all of Triton, for the key of its cache, and keeps it
    else:  # a job's own cache, in its own folder, is never asked by another Triton: half a second is saved
        cache.triton_key = lambda: "one job's"
    needs_torch, there = False, set(os.listdir(place))
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        request = read_line()
        if not request:
            return
        job, working, *sizes = json.loads(request)
        source, details = map(read, sizes)
        if needs_torch:
            import torch  # noqa: F401
        with tempfile.TemporaryDirectory(prefix="kernels_lab_", dir=place) as folder:
            folder = Path(folder)
            (folder / "exported_kernel.py").write_bytes(source)
            gc.freeze()
            child = os.fork()
            if child == 0:
                run_child(job, folder, working, details)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if alone:
                with contextlib.suppress(ProcessLookupError):  # there is none
                    os.kill(-1, signal.SIGKILL)
            needs_torch = needs_torch or (folder / "torch").exists()
            printed, answer = (content_of(folder / name) for name in ("stderr", "answer"))
            words = "\n".join(printed.decode(errors="replace").strip().splitlines()[-12:])
            answers.write(json.dumps([status, words, len(answer)]).encode() + b"\n" + answer)
            answers.flush()
        if alone and set(os.listdir(place)) != there:  # the next job begins in a sandbox in which nothing was left
            return


def keep_out() -> None:
    """Let no child look into this process's memory or write to it."""
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def content_of(path: Path) -> bytes:
    """What a child left in a file; nothing if it is none."""
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(place, "rb") as file:
            return file.read(ANSWER_BYTES)
    return b""


def read_line() -> bytes:
    """One line of standard input, read without a buffer, so that ``select`` sees what is left."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def read(size: int) -> bytes:
    """So many bytes of standard input."""
    found = bytearray()
    while len(found) < size and (some := os.read(0, min(size - len(found), 1 << 20))):
        found += some
    return bytes(found)


def run_child(job: str, folder: Path, working: str, details: bytes) -> NoReturn:
    """In the child: do the job, and end."""

    def work():
        gc.enable()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.closerange(3, 1 << 10)  # the pipe of answers is the server's alone
        os.chdir(working)
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "cache"))
        os.environ["TMPDIR"] = str(folder)  # of a compilation that failed, Triton's files stay
        if job != "trace":  # a kernel's text can ask the compiler for any amount: unrolled loops, constants
            bound_memory(COMPILER_BYTES)
        importlib.invalidate_caches()
        main(job, folder, pickle.loads(details))

    end_after(work, folder, "stderr")


def end_after(work: Callable[[], None], folder: Path, words: str) -> NoReturn:
    """Do the work with what is printed kept in the file ``words`` of ``folder``, say there whether torch came in, and end."""
    status = 1
    try:
        printed = os.open(folder / words, os.O_WRONLY | os.O_CREAT)
        os.dup2(printed, 1), os.dup2(printed, 2)
        work()
        if "torch" in sys.modules:
            (folder / "torch").touch()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def bound_memory(more: int) -> None:
    """Let this process take ``more`` bytes of addresses than it has, where the system can limit it."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    limit = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def compile_all(module, details: dict, folder: Path) -> dict:
    """Compile the kernel for each architecture, side by side, each in a process of its own."""
    children = {}
    for arch in details["arches"]:
        children[arch] = os.fork()
        if children[arch] == 0:
            compile_alone(arch, module, details, folder)
    statuses = {arch: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for arch, child in children.items()}
    answer = {}
    for arch, status in statuses.items():
        if status:  # the compiler aborted: so does this process, with its words
            print((folder / f"stderr_{arch}").read_text(errors="replace"), file=sys.stderr, flush=True)
            os.kill(os.getpid(), -status) if status < 0 else os._exit(status)
        answer[arch] = pickle.loads((folder / f"answer_{arch}").read_bytes())
        if "error" in answer[arch]:
            return answer[arch]
    return answer


def compile_alone(arch: int, module, details: dict, folder: Path) -> NoReturn:
    """In a process of its own: compile for one architecture, leave the answer in ``folder``, and end."""

    def work():
        print(f"compiling for sm_{arch}", flush=True)  # among the last words, should the compiler abort
        (folder / f"answer_{arch}").write_bytes(pickle.dumps(compile_for(arch, module, details, folder)))

    end_after(work, folder, f"stderr_{arch}")


def compile_for(arch: int, module, details: dict, folder: Path) -> dict:
    """What the compiler makes of the kernel for one architecture, or its complaint."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    front_end = GluonASTSource if module.KERNEL.is_gluon() else ASTSource
    source = front_end(module.KERNEL, named(details["signature"]), module.VALUES, details["attributes"])
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=details["options"])
    except Exception as error:
        return {"error": f"for sm_{arch}: {message_of(error)}"}
    usage = triton.knobs.nvidia.cuobjdump.path, "-res-usage"
    return {
        "asm": {name: text for name, text in compiled.asm.items() if isinstance(text, str)},
        "cubin": compiled.asm["cubin"],
        "shared_bytes": compiled.metadata.shared,
        "usage": output_of(compiled.asm["cubin"], folder, f"{compiled.hash}.usage", *usage),
    }


def message_of(error: BaseException | None) -> str:
    """An exception and what caused it: the call of a helper says where, the helper's own line what."""
    parts = []
    while error is not None:
        parts.append(f"{type(error).__name__}: {error}".strip())
        error = error.__cause__
    return "\n".join(parts)


def named(value):
    """Undoes ``_child.plain``."""
    if isinstance(value, tuple):
        return tuple(map(named, value))
    if not isinstance(value, dict):
        return value
    if "named tuple" in value:
        return namedtuple(value["named tuple"], value["fields"])(*map(named, value["fields"].values()))
    return {key: named(item) for key, item in value.items()}


def disassemble(module, details: dict, folder: Path) -> dict:
    """A binary as the GPU's own instructions: it takes as long as compiling it."""
    import triton

    name = hashlib.sha256(details["cubin"]).hexdigest()
    return {"sass": output_of(details["cubin"], folder, f"{name}.sass", triton.knobs.nvidia.nvdisasm.path, "-c")}


def output_of(cubin: bytes, folder: Path, name: str, *command: str) -> str:
    """What one of the binary tools in Triton's wheel says of a binary: once, where Triton's cache holds it by this name."""

    known = Path(os.environ["TRITON_CACHE_DIR"]) / name
    if known.exists():
        return known.read_text()
    binary = folder / f"{name}.cubin"
    binary.write_bytes(cubin)
    text = subprocess.run([*map(str, command), str(binary)], capture_output=True, text=True, check=True).stdout
    unfinished = known.with_name(f"{name}.{os.getpid()}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.write_text(text)
    unfinished.replace(known)
    return text


def trace(module, details: dict, folder: Path) -> dict:
    """Run the kernel in the interpreter and record it; its tensors travel back as it left them."""
    from kernels.lab.trace import record_exported

    return record_exported(module, details)


if __name__ == "__main__":
    serve(sys.argv[1], "--alone" in sys.argv[2:])
