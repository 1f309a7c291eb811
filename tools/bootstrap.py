"""Create the course's virtual environment; takes well under a second when it stands already.

Run by the system's Python, with nothing but the standard library; it parses on a Python too old for the course, too.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # where PyTorch keeps its builds without CUDA
ROOM = 3e9  # bytes that an environment takes, without CUDA
# How JupyterLab opens: nobody is asked about news, nothing is fetched, and the list of lessons shows their names whole.
# Learners have no panel for making assignments, and no button Validate: it saves the notebook, and says "some but not all"
# where the check's lines say what is missing, at 0 points too. An author's panel:
# `jupyter labextension enable --level=sys_prefix @jupyter/nbgrader:create-assignment`. The terminal shows the address and
# errors alone; a kernel that speaks in plain text would warn there each time that one starts.
LAB = {
    "labconfig/default_setting_overrides": {
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
        "@jupyterlab/filebrowser-extension:browser": {"showLastModifiedColumn": False},
    },
    "labconfig/page_config": {
        "disabledExtensions": {f"@jupyter/nbgrader:{name}-assignment": True for name in ("create", "validate")}
    },
    "jupyter_server_config": {
        "Application": {"log_level": "ERROR"},
        "KernelManager": {"transport_encryption": "auto"},
    },
}
PROBE = """
import importlib.metadata, importlib.util
spec = importlib.util.find_spec("kernels")
print(spec.origin if spec else None)
try:
    print("kernels", importlib.metadata.version("kernels"))
except importlib.metadata.PackageNotFoundError:
    print()
"""


class Problem(Exception):
    """What stands in the way, in one line that says what to do."""


def check_system(system, version):
    if system != "Linux":
        raise Problem(
            f"Triton has no wheel for {'macOS' if system == 'Darwin' else system}: open the repository in its "
            "devcontainer (VS Code: 'Reopen in Container'), or the lessons on Colab; README.md says how."
        )
    if version < OLDEST_PYTHON:
        raise Problem(
            f"This is Python {version[0]}.{version[1]}; the course needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or "
            "newer: install one and say `make lab PYTHON=python3.12`."
        )


def check_place(venv):
    """That an environment can be written there, and fits."""
    folder = venv if venv.exists() else venv.parent
    if not os.access(folder, os.W_OK):
        raise Problem(f"{folder} cannot be written to: clone the repository to a folder of your own, and set it up there.")
    free = shutil.disk_usage(folder).free
    if free < ROOM and folder != venv:
        raise Problem(f"The disk of {folder} has {free / 1e9:.1f} GB left, the course takes {ROOM / 1e9:.0f}: make room.")


def check_modules():
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise Problem(
                f"This Python has no `{module}` module: on Debian and Ubuntu `sudo apt install "
                f"python{sys.version_info[0]}.{sys.version_info[1]}-venv`."
            ) from None


def has_nvidia_gpu():
    """Whether the driver answers: nvidia-smi exists and exits with 0."""
    try:
        return (
            subprocess.run(["nvidia-smi"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def reachable(url):
    """Whether a web server answers within three seconds; pip itself would retry an index for minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/", method="HEAD"), timeout=3).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def fingerprint(choice, extras, venv, base=None):
    """What the environment depends on; equal fingerprints need no work."""
    digest = hashlib.sha256(repr((choice, extras, str(venv), sys.version_info[:2])).encode())
    if base is not None:
        digest.update((base / "course-stamp").read_bytes())
    for path in [ROOT / "pyproject.toml", *sorted((ROOT / "constraints").glob("*.txt"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def create(venv):
    """Make ``venv`` a working environment of this Python; one that was half made, or made by another, is made anew."""
    python = venv / "bin" / "python"
    check = f"import pip, sys; print(sys.version_info[:2] == {tuple(sys.version_info[:2])})"
    try:
        good = subprocess.run([python, "-c", check], capture_output=True, text=True).stdout.strip() == "True"
    except OSError:
        good = False
    if not good:
        check_modules()
        print(f"Creating {venv.name} with Python {platform.python_version()}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)


def install(venv, choice, extras):
    command = [venv / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["-c", ROOT / "constraints" / f"{choice}.txt", "-e", f"{ROOT}[{extras}]"]
    if choice != "gpu":
        if reachable(CPU_INDEX):
            command += ["--extra-index-url", CPU_INDEX]
        else:
            print("PyTorch's CPU index does not answer: pip takes the CUDA build (2 GB more) unless it finds another.")
    print(f"Installing with constraints/{choice}.txt: some minutes, in which pip lists what it fetches", flush=True)
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        why = "its reason is above" if reachable(CPU_INDEX) else "its reason is above; is there a network?"
        raise Problem(f"pip could not install the course ({why}); run the same command again to go on.")


def site_packages(venv):
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def requirements(extras):
    """What pyproject.toml lists under these extras, a string of names with commas between."""
    import tomllib  # this file must be read by a Python that has none, too

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [requirement for extra in extras.split(",") for requirement in listed[extra]]


def layer(venv, base, choice, extras=""):
    """Make ``venv`` see all of ``base``; install in front of it what the constraints name otherwise, and the extras."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    below = site_packages(base)
    (site_packages(venv) / "base.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
    if (base / "bin").is_dir():
        for script in (base / "bin").iterdir():  # such as alembic, which nbgrader calls by name
            there = venv / "bin" / script.name
            if not there.exists():
                there.symlink_to(script.resolve())
    lines = (ROOT / "constraints" / f"{choice}.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line and not line.startswith("#")]
    wanted = [pin for pin in pins if not list(below.glob("{}-{}[.+]*dist-info".format(*pin.split("=="))))]
    if wanted:  # pip counts as installed what lies below, so this goes past it
        install_above(venv, choice, [base / "bin" / "python", "--no-deps", "--target", site_packages(venv), *wanted])
    if extras:  # pip of the base, run by the layer's Python: what lies below is there, what is missing lands in the layer
        constraints = ROOT / "constraints" / f"{choice}.txt"
        install_above(venv, choice, [venv / "bin" / "python", "-c", constraints, *requirements(extras)])


def install_above(venv, choice, arguments):
    """``pip install``; ``arguments`` are the Python that runs it, options, and what is to be installed."""
    python, *options = arguments
    print(f"Installing {', '.join(str(o) for o in options if '=' in str(o))} into {venv.name}", flush=True)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", *options]
    if choice != "gpu" and reachable(CPU_INDEX):
        command += ["--extra-index-url", CPU_INDEX]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise Problem(f"pip could not install into {venv.name} (its reason is above); run the same command again.")


def check_kernels(venv):
    """The name `kernels` must mean this repository; an unrelated distribution has it too."""
    output = subprocess.run(
        [venv / "bin" / "python", "-c", PROBE], cwd=venv, capture_output=True, text=True, check=True
    )
    origin, foreign = output.stdout.split("\n")[:2]
    if foreign:
        raise Problem(
            f"An unrelated distribution, `{foreign}`, is installed in {venv.name} under this course's package name: "
            f"`{venv.name}/bin/python -m pip uninstall kernels`, then run this again."
        )
    if origin != str(ROOT / "kernels" / "__init__.py"):
        raise Problem(
            f"`import kernels` finds {origin}, not this repository's kernels/: "
            + ("unset PYTHONPATH." if os.environ.get("PYTHONPATH") else f"delete {venv.name} and run this again.")
        )


def configure_lab(venv):
    """Write ``LAB``'s files, those that are not there: they may have been changed since."""
    for name, values in LAB.items():
        file = venv / "etc" / "jupyter" / f"{name}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values, indent=1) + "\n")


def set_up(venv, choice, extras, base=None):
    check_system(platform.system(), tuple(sys.version_info[:2]))
    if choice == "auto":
        choice = "gpu" if has_nvidia_gpu() else "cpu"
    stamp = venv / "course-stamp"
    if base is not None and not (base / "course-stamp").is_file():
        raise Problem(f"{base.name} is to stand below {venv.name}: set it up first, `make setup`.")
    wanted = fingerprint(choice, extras, venv, base)
    if not (stamp.is_file() and stamp.read_text() == wanted and (venv / "bin" / "python").exists()):
        check_place(venv)
        stamp.unlink(missing_ok=True)
        if base is None:
            create(venv)
            install(venv, choice, extras)
        else:
            layer(venv, base, choice, extras)
        check_kernels(venv)
        stamp.write_text(wanted)  # last, so that an interrupted set-up goes on where it stopped
        print(f"{venv.name} is set up", flush=True)  # pip's last line is a list of eighty names
    else:
        check_kernels(venv)
    if base is None:
        configure_lab(venv)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="where, relative to the repository")
    parser.add_argument("--constraints", default="auto", help="auto (by nvidia-smi), or a name in constraints/")
    parser.add_argument("--base", type=Path, help="an environment of which all is used but what the constraints pin")
    parser.add_argument("--extras", help="the extras of pyproject.toml to install; lab,test, and none with --base")
    options = parser.parse_args(arguments)
    if options.extras is None:
        options.extras = "" if options.base else "lab,test"
    try:
        set_up(ROOT / options.venv, options.constraints, options.extras, options.base and ROOT / options.base)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
