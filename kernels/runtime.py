"""Where kernels run, decided once, before Triton is imported.

A CUDA GPU that torch can use: kernels are compiled for it. Otherwise they run on the CPU in Triton's interpreter, which
Triton turns on when it sees ``TRITON_INTERPRET=1`` at import. A value that the user has set wins; one that was set here is
no wish of the user, so a child process, which inherits it, decides for itself.
"""

import atexit
import os
import platform
import sys
from pathlib import Path

import torch

# Triton changes this default in 3.10 and warns until it is set; 1 keeps fused multiply-add, as on every version so far.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

_TRUE = {"1", "true", "on", "yes"}
_MARK = "KERNELS_CHOSE_THE_INTERPRETER_IN"  # the process that set TRITON_INTERPRET on its own account
_marked = os.environ.pop(_MARK, str(os.getpid()))
if _marked != str(os.getpid()) and os.environ.get("TRITON_INTERPRET") == "1" and "triton" not in sys.modules:
    del os.environ["TRITON_INTERPRET"]
_asked = os.environ.get("TRITON_INTERPRET")

#: True when kernels run in Triton's interpreter on the CPU, False when they are compiled for a GPU.
interpreted: bool = not torch.cuda.is_available() if _asked is None else _asked.strip().lower() in _TRUE

if interpreted:
    if _asked is None:
        os.environ[_MARK] = str(os.getpid())
    os.environ["TRITON_INTERPRET"] = "1"

_triton_was_imported = "triton" in sys.modules

try:
    import triton
    import triton.language
except ImportError as error:
    raise ImportError(
        f"Triton is not installed, and it has no wheel for {platform.system()}. On Linux run `make lab`; elsewhere open "
        "the repository in its devcontainer or on Colab (see README.md)."
        if platform.system() != "Linux"
        else "Triton is not installed: run `make lab`, or `pip install -e .` in the repository."
    ) from error

# The mode Triton was imported in shows in its own library: `cdiv` became an interpreted or a compiled function then.
_triton_is_interpreted = type(triton.language.cdiv).__name__ == "InterpretedFunction"
if _triton_was_imported and interpreted and not _triton_is_interpreted:
    from kernels import _triton_mode

    _triton_mode.interpret()
elif _triton_was_imported and _triton_is_interpreted != interpreted:
    raise RuntimeError(
        "Triton was imported before kernels, in interpreter mode, but here kernels need compiled mode. Restart Python and "
        "`import kernels` before triton."
    )

if interpreted:  # with a GPU's numbers, and less bookkeeping around each operation
    from kernels import _low_precision, _triton_interpreter

    _low_precision.install()
    _triton_interpreter.quicken()

# Triton 3.9 keeps every jit function in a list of its own until Python has gone, and prints a page about what Gluon's hold.
atexit.register(getattr(triton.runtime.jit, "_triton_jit_function_registry", {}).clear)

#: Where tensors for the kernels belong: the current CUDA GPU when compiled, the CPU when interpreted.
device: torch.device = torch.device("cuda" if torch.cuda.is_available() and not interpreted else "cpu")


def describe() -> str:
    """One readable line: device, torch, triton and mode; and the folder, where another checkout of the course is open."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU ({platform.machine()})"
    mode = "interpreted, no GPU needed" if interpreted else "compiled"
    ours, here = Path(__file__).resolve().parents[1], Path.cwd()
    opened = next((folder for folder in (here, *here.parents) if (folder / "kernels" / "runtime.py").is_file()), ours)
    place = "" if opened.samefile(ours) else f" · kernels of {ours}, not of {opened}"
    return f"{name} · torch {torch.__version__} · triton {triton.__version__} · {mode}{place}"
