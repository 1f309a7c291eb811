"""What the child process of ``_child.py`` does: compile an exported kernel, or trace it in the interpreter.

Run as a script: ``python _child_main.py compile|trace FOLDER``. It must not import ``kernels`` before a job needs
it: a compile job starts in a fraction of the time without torch.
"""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path


def main(job: str, folder: Path) -> None:
    """Do the job in ``folder`` and leave the answer there."""
    details = pickle.loads((folder / "details.pickle").read_bytes())
    try:
        spec = importlib.util.spec_from_file_location("exported_kernel", folder / "exported_kernel.py")
        module = sys.modules["exported_kernel"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        answer = {"compile": compile_all, "trace": trace}[job](module, details, folder)
    except Exception as error:  # whatever goes wrong is the answer: the parent raises it
        answer = {"error": f"{type(error).__name__}: {error}".strip()}
    (folder / "answer.pickle").write_bytes(pickle.dumps(answer))


def compile_all(module, details: dict, folder: Path) -> dict:
    """Compile the kernel for each architecture and read what the compiler made of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    front_end = GluonASTSource if module.KERNEL.is_gluon() else ASTSource
    answer = {}
    for arch in details["arches"]:
        print(
            f"compiling for sm_{arch}", file=sys.stderr, flush=True
        )  # among the last words, should the compiler abort
        source = front_end(module.KERNEL, details["signature"], module.VALUES, details["attributes"])
        try:
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=details["options"])
        except Exception as error:
            return {"error": f"for sm_{arch}: {type(error).__name__}: {error}"}
        cubin = folder / f"sm_{arch}.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        answer[arch] = {
            "asm": {name: text for name, text in compiled.asm.items() if isinstance(text, str)},
            "shared_bytes": compiled.metadata.shared,
            "usage": tool(triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin),
            "sass": tool(triton.knobs.nvidia.nvdisasm.path, "-c", cubin),
        }
    return answer


def tool(*command) -> str:
    """The output of one of the binary tools in Triton's wheel."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def trace(module, details: dict, folder: Path) -> dict:
    """Run the kernel in the interpreter and record it; its tensors travel back as it left them."""
    from kernels.lab.trace import record_exported

    return record_exported(module, details)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
