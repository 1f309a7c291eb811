"""Sandboxes: bubblewrap around the template of the sandboxed processes, of each of which the judge holds a socket, and around
the compiler of their kernels."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.grading.sandboxed import syscalls

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
USER = 60999  # whom sandboxed processes run as, where the judge is root: limits on processes do not hold for root
#: What of the course a sandboxed process sees: no finished operator, no solution, no test.
COURSE = (*sorted(path.name for path in (ROOT / "kernels").glob("*.py")), "lab", "gluon_model")
COURSE += "common/__init__.py", "common/lines.py"
#: What of the checks makes calls and names errors; what knows an answer, a clinic's diagnoses above all, stays out.
CHECK = (
    "cases compiling costs emitted experiments explanations flash_mods framework failing guard pipelines "
    "replay say stale submission tensors watch wording clinics/disguise clinics/faulty_kernel clinics/worksheets "
    "exercises/pipeline_clinic"
).split()
START_SECONDS = 180
LEAVE_SECONDS = 2

#: What every sandboxed process needs besides bubblewrap, tried in its place.
TRY = """
import sys
from sandboxed import server, syscalls
server.become(int(sys.argv[1]))
if not server.enter():
    sys.exit("no process may have namespaces of its own (user.max_user_namespaces, or AppArmor's restriction of them)")
if not syscalls.forbid():
    sys.exit("this system has no filter of system calls (seccomp)")
"""

UNSAFE = """without a sandbox a submission can read and change whatever you can: the solutions, other students' work, the
gradebook, your keys; it reaches the network, and outlives its grading"""


class NoSandbox(RuntimeError):
    """There is no bubblewrap, or it cannot work here."""


@dataclass(frozen=True)
class Limits:
    """What one process may use: seconds of CPU, bytes of memory and of files, processes (two are the sandbox's own)."""

    cpu: int = 600
    memory: int = 2 << 30
    disk: int = 64 << 20
    processes: int = 2


def why_not() -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed (apt install bubblewrap)"
    if why := syscalls.why_not():
        return f"a sandboxed process cannot be kept from memory beyond its limits: {why}"
    tried = subprocess.run(
        [*_wrapped(), *_served(), *_sealed({}), sys.executable, "-S", "-c", TRY, _user()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return "" if tried.returncode == 0 else f"bubblewrap cannot work here: {tried.stderr.strip() or 'it fails'}"


def _places() -> list[str]:
    """What Python itself needs, each at its own place. Of the system's Python these are parts of /usr, not all of it."""
    wanted, program = [sys.prefix, sys.base_prefix, sys.exec_prefix], Path(sys.executable).resolve()
    wanted = [path for path in wanted if path != "/usr"] + [sysconfig.get_path("stdlib"), *_packages()]
    wanted += map(str, program.parent.glob("python3*"))  # by whichever of its names an environment's link calls it
    kept = []
    for place in sorted({os.path.abspath(path) for path in wanted}, key=len):
        if os.path.exists(place) and not any(place == other or place.startswith(other + os.sep) for other in kept):
            kept.append(place)
    return kept


def _wrapped() -> list[str]:
    """bubblewrap with everything but the course: system libraries and Python, all read-only, and nothing of anybody's."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "submission"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() != 0:
        command += ["--unshare-user"]
    for name in ("lib", "lib64", "lib32", "usr/lib64", "usr/lib32", f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}"):
        place = Path("/", name)
        command += _folders(place.parent)
        if place.is_symlink():
            command += ["--symlink", os.readlink(place), str(place)]
            place = place.resolve() if place.parent.name == "usr" else place
        if place.is_dir() and not place.is_symlink():
            command += ["--ro-bind", str(place), str(place)]
    for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives"):
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # /tmp before the places: a course or an environment that lies there must not be hidden by it
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(64 << 20), "--tmpfs", "/tmp"]
    for place in _places():
        command += [*_folders(Path(place).parent), "--ro-bind", place, place]
    return command


def _folders(place: Path) -> list[str]:
    """A folder and its parents, which everybody may enter: those that bubblewrap makes by itself are its user's alone."""
    return [
        word for each in (*reversed(place.parents[:-1]), place) for word in ("--dir", str(each)) if str(each) != "/"
    ]


def _course() -> list[str]:
    """bubblewrap's words for what of the course is seen, at /course."""
    inside = ("check/clinics", "check/exercises", "common")
    command = [word for folder in inside for word in _folders(Path("/course/kernels") / folder)]
    for name in (*COURSE, *(f"check/{name}.py" for name in CHECK)):
        command += ["--ro-bind", str(ROOT / "kernels" / name), f"/course/kernels/{name}"]
    return command


def _served() -> list[str]:
    """bubblewrap's words for the sandboxed processes' own program."""
    return [*_folders(Path("/course")), "--ro-bind", str(HERE / "sandboxed"), "/course/sandboxed"]


def _user() -> str:
    """Whom a sandboxed process becomes: somebody else where this process is root."""
    return str(0 if os.getuid() else USER)


def _packages() -> list[str]:
    """Where Python finds the libraries."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _sealed(environment: dict[str, str]) -> list[str]:
    """bubblewrap's last words: all of the environment, and nothing to be written but in /tmp."""
    command = []
    for name, value in (environment | {"PYTHONPATH": os.pathsep.join(["/course", *_packages()])}).items():
        command += ["--setenv", name, value]
    return [*command, "--chdir", "/tmp", "--remount-ro", "/", "--remount-ro", "/dev", "--"]


def compiler() -> tuple[list[str], dict[str, str], str]:
    """A ``Place`` for the process that compiles submissions' kernels: a sandbox, with nobody's work but the job's in it.

    `texts` lets none through that asks the compiler for more than a kernel. Were there one, it would find what a
    sandboxed process's template finds, without the user's keys, and its answer is read as text.
    """
    environment = _environment() | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    del environment["TRITON_CACHE_DIR"]  # each job's own: nothing that one leaves is taken for another's
    command = [*_wrapped(), "--cap-drop", "ALL", *_course()]
    if kept := os.environ.get("TRITON_CACHE_DIR"):  # asked for: the tests compile the same kernels again and again
        os.makedirs(kept, exist_ok=True)
        environment["TRITON_CACHE_DIR"] = kept = os.path.abspath(kept)
        command += [*_folders(Path(kept).parent), "--bind", kept, kept]
    script = "/course/kernels/lab/_child_main.py"  # -P: its folder holds a trace.py, which is not the standard library's
    command += [*_sealed(environment), sys.executable, "-s", "-P", script, "/tmp", "--alone"]
    return command, {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, "/tmp"


def _environment() -> dict[str, str]:
    """All of a sandboxed process's environment."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "submission",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_CACHE_DIR": "/tmp",
    }


class Template:
    """A warm process in a sandbox, from which sandboxed processes are forked."""

    def __init__(self, unsafe: bool = False):
        self.unsafe = unsafe
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._errors = tempfile.TemporaryFile()
        python = [sys.executable, "-s", "-m", "sandboxed.server", "--control", str(theirs.fileno())]
        environment = _environment()
        if unsafe:
            environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *_packages(), str(HERE)])}
            command = [*python, "--unsafe"]
        else:
            command = [*_wrapped(), *_course(), *_served(), *_sealed(environment), *python, "--user", _user()]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self._errors, env=environment if unsafe else {"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
        )  # fmt: skip
        theirs.close()
        self._ready = False

    @property
    def alive(self) -> bool:
        """Whether the template can still start a sandboxed process."""
        return self._process.poll() is None

    def _answer(self, seconds: float) -> dict:
        self._control.settimeout(seconds)
        try:
            data = self._control.recv(1 << 16)
        except OSError as error:
            data, why = b"", f"{type(error).__name__} {error}"
        else:
            why = ""
        if not data:
            self._process.kill()
            raise NoSandbox(f"the sandboxed processes' template did not start: {self.complaint() or why}")
        return json.loads(data)

    def complaint(self) -> str:
        """The last line that the sandbox wrote to its standard error."""
        self._errors.seek(0)
        lines = self._errors.read(1 << 20).decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-14:]) if lines else ""

    def start(self, limits: Limits, needs: list[str] = ()) -> "Connection":
        """A new sandboxed process; ``needs``: "program", if it traces those of PyTorch, and "pipelines", of Gluon."""
        self._ready = self._ready or self._answer(START_SECONDS)["ready"]
        ours, theirs = socket.socketpair()
        order = {"limits": asdict(limits), "needs": list(needs)}
        socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
        theirs.close()
        if not (number := self._answer(START_SECONDS)["started"]):
            raise NoSandbox("a sandboxed process was given no namespaces of its own")
        return Connection(ours, self, number)

    def end(self, number: int) -> None:
        """End one sandboxed process and all that it started."""
        with contextlib.suppress(OSError, NoSandbox):
            self._control.send(json.dumps({"end": number}).encode())
            self._answer(30)

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._control.close()  # the template leaves by itself, and what it took is counted as this process's
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.close()


class Connection:
    """The judge's end of one sandboxed process."""

    def __init__(self, connection: socket.socket, template: Template, number: int):
        self._connection, self._template, self._number = connection, template, number

    def ask(self, header: dict, arrays=(), seconds: float = 30.0) -> tuple[dict, list]:
        """Send a request, wait for the answer; after an error of any kind the sandboxed process is no longer of use."""
        from tools.grading.sandboxed import wire  # here: who starts a template does not wait for numpy

        until = time.monotonic() + seconds
        wire.send(self._connection, header, arrays, until)
        return wire.receive(self._connection, until)

    def close(self) -> None:
        """End the sandboxed process, whatever it is doing."""
        self._connection.close()
        self._template.end(self._number)
