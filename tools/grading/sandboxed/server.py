"""The sandboxed processes' template: it imports what kernels need once, and forks a sandboxed process for each submission.

It runs inside the sandbox and never executes a line of a submission itself. A fork enters namespaces of its own: it sees
no other process, has an empty /tmp, and what it starts ends with it. The judge holds the other ends of two sockets: orders
arrive on one, a sandboxed process's own connection comes with the order that starts it.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import linecache
import os
import resource
import signal
import socket
import struct
import sys
import types

from . import syscalls

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET, _NEWUTS = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x4000000
_BIND = 0x1000 | 0x4000  # with what is mounted in it
_libc = ctypes.CDLL(None, use_errno=True)


def become(user: int) -> None:
    """Give up root for good."""
    if os.getuid() == 0 and user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a process that changed its user may write its own uid_map again
    _libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


def _folder(name: str) -> types.ModuleType:
    """A package of the course without what its own first lines import: all checks, and the answers that they know."""
    import kernels

    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = [os.path.join(os.path.dirname(kernels.__file__), *name.split(".")[1:])]
    return made


def prepare() -> None:
    """Import everything that a sandboxed process will need, and nothing that knows an answer's operator."""
    import kernels  # noqa: F401, I001  before triton: this import decides where kernels run
    import torch

    torch.set_num_threads(1)
    kernels.check = _folder("kernels.check")
    kernels.check.clinics = _folder("kernels.check.clinics")
    kernels.check.exercises = _folder("kernels.check.exercises")
    import kernels.check.emitted
    import kernels.check.flash_mods
    import kernels.check.guard
    import kernels.lab

    kernels.check.guarded = kernels.check.guard.guarded  # a test may look for what lies outside

    # What torch asks /proc at first use: sandboxed processes have none.
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tile = torch.ones(32, 32).to(dtype)
        (tile @ tile + torch.nn.functional.pad(tile, (1, 1))[:, 1:-1]).float().sum()
    from kernels.check import watch
    # A clinic's test learns of a trace where a kernel reads and writes, not in which words: it may know its lines.
    trace = sys.modules["kernels.lab.trace"]
    getline = trace.linecache.getline
    trace.linecache = types.SimpleNamespace(getline=lambda file, line: "" if file[:8] == "<kernel " else getline(file, line))
    # It starts a thread, which a sandboxed process may not; the judge has a timer of its own.
    watch.limited = contextlib.nullcontext
    # Triton reads the source of what it runs, and the files are hidden from a sandboxed process.
    for module in (kernels.check.emitted, kernels.check.flash_mods):
        lines = linecache.getlines(module.__file__)
        linecache.cache[module.__file__] = (0, None, lines, module.__file__)  # no time of change: it is not looked for
    from . import room, wire  # noqa: F401  here, because a sandboxed process's /tmp hides what lies in ours


def prepare_pipelines() -> None:
    """Import the model of Gluon, which needs Triton 3.8."""
    with contextlib.suppress(ImportError):
        import kernels.check.exercises.pipeline_clinic
        import kernels.gluon_model  # noqa: F401


def prepare_programs() -> None:
    """Import what ``make_fx`` imports at its first use: as much again as all the rest, and one exercise needs it."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(lambda x: x + 1, tracing_mode="fake")(torch.zeros(()))


def enter() -> bool:
    """Enter namespaces of one's own; returns whether that is possible here. The next fork is their first process."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_NEWUSER | _NEWPID | _NEWNS | _NEWIPC | _NEWNET | _NEWUTS):
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _in_tmp(path: str) -> bool:
    return path.startswith("/tmp/") and os.path.isdir(path)


def furnish(limits: dict) -> None:
    """An empty /tmp of limited size, but for a Python that lies there; no /proc, no course, and no right to change any."""
    nosuid_nodev = 2 | 4
    size = f"size={limits['disk']},mode=700".encode()
    # Triton and torch import as they go, and a course that was cloned into /tmp has its environment there.
    kept = {path: os.open(path, os.O_PATH) for path in (sys.prefix, sys.base_prefix, *sys.path) if _in_tmp(path)}
    if _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", nosuid_nodev, size):
        raise OSError(ctypes.get_errno(), "mount /tmp")
    for path, place in sorted(kept.items()):
        if not os.path.isdir(path):  # else it lies in one that is there again
            os.makedirs(path)
            if _libc.mount(f"/proc/self/fd/{place}".encode(), path.encode(), None, _BIND, None):
                raise OSError(ctypes.get_errno(), f"mount {path}")
        os.close(place)
    for path in (b"/proc", b"/course"):  # the course was imported: what a cell reads of its files is for a page
        if _libc.mount(b"tmpfs", path, b"tmpfs", nosuid_nodev | 1 | 8, b"size=4k"):
            raise OSError(ctypes.get_errno(), f"mount {path.decode()}")
    header, data = struct.pack("=II", 0x20080522, 0), bytes(24)  # capset: no capability at all
    _libc.capset(header, data)


def limit(limits: dict, alone: bool) -> None:
    """The kernel's own limits on one process."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    wanted = {
        resource.RLIMIT_AS: now + limits["memory"],
        resource.RLIMIT_FSIZE: limits["disk"],
        resource.RLIMIT_CPU: limits["cpu"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: limits["processes"] if alone else 256,
    }
    for kind, value in wanted.items():
        resource.setrlimit(kind, (value, value))


def serve(connection: socket.socket) -> None:
    """Answer the judge's requests until it hangs up."""
    from . import room, wire

    def ask(header, arrays):
        wire.send(connection, header, arrays)
        return wire.receive(connection)

    sys.modules["__main__"], here = types.ModuleType("__main__"), room.Room(ask)
    while True:
        try:
            request, arrays = wire.receive(connection)
        except wire.Closed:
            return
        if request["op"] == "load":
            answer = here.load(request["cells"]), []
        else:
            answer = getattr(here, request["op"])(request, arrays)
        try:
            wire.send(connection, *answer)
        except wire.Closed:
            return


def start(order: dict, connection: socket.socket, control: socket.socket, unsafe: bool) -> int:
    """Fork a sandboxed process; returns the number by which it is ended, 0 where it gets no namespaces."""
    limits = order["limits"]
    if unsafe:
        pid = os.fork()
        if pid == 0:
            _child(connection, control, limits, unsafe)
        return pid
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reading)
        if enter():
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                _child(connection, control, limits, unsafe)
            os.write(writing, str(pid).encode())
            os.close(writing)
            control.close()
            connection.close()
            os.waitpid(pid, 0)
        os._exit(0)
    os.close(writing)
    told = os.read(reading, 20)
    os.close(reading)
    return int(told or 0)


def _child(connection, control, limits, unsafe):
    try:
        control.close()
        os.setsid()
        _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        limit(limits, not unsafe)
        if not unsafe:
            furnish(limits)
        os.chdir("/tmp")
        if not syscalls.forbid() and not unsafe:
            raise OSError("this system has no filter of system calls (seccomp)")
        os.dup2(1, 2)  # nowhere: the template's own is a file, in which the next one could read
        serve(connection)
    except BaseException as error:
        sys.stderr.write(f"submission: {type(error).__name__}: {error}\n"[:500])
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Prepare, say so, then follow the judge's orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--unsafe", action="store_true", help="there is no sandbox")
    arguments = parser.parse_args()
    become(arguments.user)
    control = socket.socket(fileno=arguments.control)
    prepare()
    gc.freeze()  # nobody looks for garbage in what was imported
    control.send(json.dumps({"ready": True}).encode())
    missing = {"program": prepare_programs, "pipelines": prepare_pipelines}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not data:
            return
        order = json.loads(data)
        if "end" in order:
            with contextlib.suppress(ProcessLookupError):
                os.kill(order["end"], signal.SIGKILL)
            answer = {"ended": order["end"]}
        else:
            for name in order["needs"]:
                missing.pop(name, bool)()
            connection = socket.socket(fileno=descriptors[0])
            answer = {"started": start(order, connection, control, arguments.unsafe)}
            connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        control.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
    os._exit(0)  # without taking apart what Triton's bindings hold
