"""Re-execute notebooks from a fresh kernel and store their outputs.

`make refresh` does all of them, `make refresh NB=notebooks/00_start_here.ipynb` one.
An unchanged notebook comes back without a diff:

* metadata that says who ran it and when is left out, and text goes through ``tools/nbval_sanitize.cfg``;
* a cell tagged ``nbval-ignore-output`` keeps its stored output until its source changes (``--retake`` takes it anew);
* a figure that looks the same keeps its stored bytes;
* widgets, which are nothing without a kernel, are not stored.

A notebook that raises is reported and left as it was.
"""

import argparse
import base64
import copy
import hashlib
import io
import os
import re
import struct
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

from tools import lesson_kernels
from tools.kernel_environment import ROOT, kernel_environment

IGNORED = "nbval-ignore-output"
SANITIZE = ROOT / "tools" / "nbval_sanitize.cfg"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def lessons_and_solutions(root: Path = ROOT) -> list[Path]:
    """Every notebook that is stored with outputs, in reading order."""
    return [*sorted(root.glob("notebooks/*.ipynb")), *sorted(root.glob("solutions/*/*.ipynb"))]


def sanitize_patterns() -> list[tuple[str, str]]:
    """The (regex, replacement) pairs of nbval's sanitize file, in nbval's own format."""
    return re.findall(r"^regex: (.*)$\n^replace: (.*)$", SANITIZE.read_text(), flags=re.MULTILINE)


def sanitized(text: str, patterns) -> str:
    for regex, replacement in patterns:
        text = re.sub(regex, replacement, text)
    return text


def without_text_chunks(png: bytes) -> bytes:
    """The same picture without the chunks that name the program and the time that wrote it."""
    kept, at = [png[:8]], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] not in (b"tEXt", b"iTXt", b"zTXt", b"tIME"):
            kept.append(png[at : at + 12 + length])
        at += 12 + length
    return b"".join(kept)


def look_alike(a: bytes, b: bytes) -> bool:
    """Whether two PNGs show the same thing: one size, and all but a speck of pixels within a third of the range."""
    import numpy as np
    from PIL import Image

    a, b = (np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"), dtype=np.int16) for png in (a, b))
    # 0.02 % of a figure is smaller than one marker: font hinting stays below it, a moved point does not. A third: older
    # pictures are stored in few colours, an edge's shades up to a fifth apart; the palest ink is further from white.
    return a.shape == b.shape and bool((np.abs(a - b).max(axis=-1) > 80).mean() < 2e-4)


def normalise_output(output, patterns):
    """One output as it is stored, or None when it is a widget."""
    if output.output_type == "stream":
        output.text = sanitized(output.text, patterns)
    elif output.output_type == "error":
        output.evalue = sanitized(output.evalue, patterns)
        output.traceback = [sanitized(line, patterns) for line in output.traceback]
    else:
        if "application/vnd.jupyter.widget-view+json" in output.data:
            return None
        for kind, value in output.data.items():
            if kind == "image/png":
                output.data[kind] = base64.b64encode(without_text_chunks(base64.b64decode(value))).decode()
            elif isinstance(value, str) and kind != "text/html":  # a figure's: nbval passes its bytes over, they are kept
                output.data[kind] = sanitized(value, patterns)
    return output


def keep_alike_figures(new: list, old: list) -> None:
    """Put the stored bytes back where a figure at the same place among the outputs looks the same."""
    for a, b in zip(new, old):
        png_a, png_b = (output.get("data", {}).get("image/png") for output in (a, b))
        if png_a and png_b and png_a != png_b and look_alike(base64.b64decode(png_a), base64.b64decode(png_b)):
            a.data["image/png"] = png_b
            if "text/html" in a.data:
                a.data["text/html"] = a.data["text/html"].replace(png_a, png_b.strip())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def merge(executed, stored, *, retake: bool = False):
    """Turn ``executed`` into what is stored, keeping from ``stored`` what should not change; returns it."""
    patterns = sanitize_patterns()
    before = {cell.id: cell for cell in stored.cells if cell.cell_type == "code"}
    executed.metadata = nbformat.from_dict({**stored.metadata, **METADATA})
    executed.metadata.pop("widgets", None)
    executed.nbformat_minor = 5
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        old = before[cell.id]
        cell.metadata.pop("execution", None)
        if IGNORED in cell.metadata.get("tags", []):
            # Written beside the output it belongs to, so that a changed source shows, whatever the editor or git did.
            unchanged = cell.metadata.get("output_of") == digest(cell.source)
            cell.metadata["output_of"] = digest(cell.source)
            if unchanged and not retake:
                cell.outputs = old.outputs
        else:
            cell.metadata.pop("output_of", None)
        cell.outputs = [kept for output in cell.outputs if (kept := normalise_output(output, patterns)) is not None]
        keep_alike_figures(cell.outputs, old.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return executed


def refresh(path: Path, *, timeout: float, retake: bool = False) -> bool:
    """Execute the notebook at ``path`` in its own folder and store it; returns whether the file changed."""
    stored = nbformat.read(path, as_version=4)
    executed = copy.deepcopy(stored)
    NotebookClient(
        executed,
        timeout=timeout,
        kernel_name="python3",  # the interpreter this runs in, not whatever the notebook was last saved with
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # or each kernel warns that it has none
    ).execute(env=kernel_environment({"TRITON_INTERPRET": "1", **os.environ}))  # stored: what no GPU is needed for
    return store(path, merge(executed, stored, retake=retake))


def store(path: Path, notebook) -> bool:
    """Write ``notebook`` to ``path``; returns whether the file changed."""
    nbformat.validate(notebook)
    after = nbformat.writes(notebook) + "\n"
    if after == path.read_text():
        return False
    temporary = path.with_suffix(".ipynb.part")
    temporary.write_text(after)
    temporary.replace(path)
    return True


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every lesson and every solution")
    parser.add_argument("--retake", action="store_true", help=f"take the outputs of cells tagged {IGNORED} anew")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a cell may take (default: 120)")
    options = parser.parse_args(arguments)

    failed = 0
    lesson_kernels.write()
    for path in options.notebooks or lessons_and_solutions():
        print(f"{path} ", end="", flush=True)
        start = time.monotonic()
        try:
            changed = refresh(path.resolve(), timeout=options.timeout, retake=options.retake)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed += 1
            print(f"FAILED, left as it was\n{error}", file=sys.stderr)
            continue
        print(f"{'stored' if changed else 'unchanged'} ({time.monotonic() - start:.1f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
