"""The sandbox by itself: code does its worst, and neither the judge nor the next one notices."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import numpy
import pytest

from kernels.lab import _child, _fork_server
from tools.grading import sandbox
from tools.grading.bench import Bench, Told
from tools.grading.sandbox import ROOT, USER, Limits, NoSandbox, Template, why_not
from tools.grading.sandboxed import values, wire

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a sandbox")


@pytest.fixture(scope="module")
def template():
    os.environ["NBGRADER_DATABASE_URL"] = "postgresql://grader:secret@host/course"
    try:
        template = Template()
    finally:
        del os.environ["NBGRADER_DATABASE_URL"]
    yield template
    template.close()


def told(template, source, seconds=20.0):
    """What a cell that runs ``source`` says: it raises with what it found out."""
    connection = template.start(Limits())
    try:
        answer, _ = connection.ask(
            {"op": "load", "cells": [["a", source, ["what it never defines"], ""]]}, seconds=seconds
        )
        return answer["broken"]["a"][0] if answer["broken"] else ""
    finally:
        connection.close()


def in_tmp(*places):
    """What a sandbox's /tmp holds of itself: the way to an environment, or another place of these, that lies there."""
    return sorted({Path(place).parts[2] for place in (*sandbox._places(), *places) if place.startswith("/tmp/")})


def test_it_sees_nothing_of_the_course_and_nobody(template):
    (ROOT / "build").mkdir(exist_ok=True)
    source = "import os\nx = os.path.exists({path!r}), os.getpid(), os.listdir('/tmp'), os.listdir('/proc')\n"
    source += "raise ValueError(x)"
    for path in (str(ROOT / "solutions"), str(ROOT / "gradebook.db"), str(ROOT / "tests"), "/etc/passwd", "/home"):
        assert f"(False, 1, {in_tmp()}, [])" in told(template, source.format(path=path)), path
    assert "ValueError: [] in" in told(template, "import os\nraise ValueError(os.listdir('/course'))")
    mounted = [word.removeprefix("/course/kernels/") for word in sandbox._course() if word.startswith("/course/kernels/")]
    assert "check/clinics/worksheets.py" in mounted
    hidden = {"dynamic_conv", "flex_attention", "conv_wgrad", "recurrent_attention", "part_0.py", "row_softmax.py"}
    assert not [place for place in mounted if hidden & set(place.split("/"))]
    assert told(template, "from kernels.check.clinics import part_0\nassert part_0.FAULTY[0].lines")
    assert told(
        template, "import kernels.check.exercises.row_softmax, kernels.dynamic_conv as d\nassert callable(d.dynamic_conv)"
    )


READ = (  # doors to a file
    "torch.zeros(1).untyped_storage().from_file({path!r}, False, 100)",
    "torch.from_file({path!r}, size=100, dtype=torch.uint8)",
    "numpy.memmap({path!r}, mode='r')",
    "os.open({path!r}, 0)",
    "assert ctypes.CDLL(None).open({path!r}.encode(), 0) >= 0",
    "inspect.getsource(kernels.lab.compare)",
)


@pytest.mark.parametrize("read", READ)
def test_it_reads_no_file_of_the_course(template, read):
    """What it needs of the course was imported before a cell runs."""
    path = "/course/kernels/lab/trace.py"
    source = f"import ctypes, inspect, os\nimport numpy, torch, kernels.lab\n{read.format(path=path)}"
    assert told(template, source), "it could"


def test_of_the_course_triton_finds_its_kernels_source(template):
    """The files are hidden, the text of each Triton function among them is not: Triton reads it as it runs one."""
    wanted = {"kernels.check.emitted", "kernels.check.flash_mods"}
    found = "\n".join(f"import {name}" for name in wanted)
    found += "\nimport inspect, sys\nfrom kernels.lab._triton_private import is_kernel, python_function as of\n"
    found += "seen = [(m, inspect.getsource(of(f))) for m in list(sys.modules.values()) if 'kernels' in m.__name__"
    found += " for f in vars(m).values() if is_kernel(f) and of(f).__module__ == m.__name__]\n"
    found += "raise ValueError(sorted({m.__name__ for m, _ in seen}), 'end')"
    assert f"({sorted(wanted)}, 'end')" in told(template, found)


def test_each_process_has_an_empty_folder(template):
    """What one leaves, in whichever of its processes, no other finds: not another call's kernel, nor the next test."""
    leave = "import os\nseen = sorted(os.listdir('/tmp'))\nopen('/tmp/left', 'w').close()\nraise ValueError(seen)"
    bench = Bench(lambda: template, Limits(), seconds=20.0, total=60.0)
    cells = [["a", leave, ["what it never defines"], ""]]
    seen = []
    for room in ("record", "traced", "bare", "tests", "tests"):
        if room in bench._open:
            bench.close(room)
        answer, _ = bench.ask(room, [], {"op": "load", "cells": cells})
        seen.append(answer["broken"]["a"][0])
    bench.close()
    assert all(f"ValueError: {in_tmp()} in" in each for each in seen), seen


def test_where_no_process_gets_namespaces_nothing_is_graded(tmp_path, monkeypatch):
    """As AppArmor has it on some systems: one process's /tmp and /course would be another's."""
    if "--disable-userns" not in subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this bubblewrap is older than 0.8")
    fence = "--unshare-user --uid 60999 --gid 60999 --disable-userns"
    tmp_path.joinpath("bwrap").write_text(f'#!/bin/sh\nexec {shutil.which("bwrap")} {fence} "$@"\n')
    tmp_path.joinpath("bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sandbox, "_user", lambda: "0")  # it is somebody else already
    assert "no process may have namespaces of its own" in why_not()
    template = Template()
    with pytest.raises(NoSandbox, match="no namespaces of its own"):
        template.start(Limits())
    template.close()


def test_of_the_system_it_sees_libraries_and_python(template, compiler):
    """No program, nothing that somebody installed: what a cell could read there is not known."""
    tell = "import os\nraise ValueError([p for p in {!r} if os.path.isdir(p) and os.listdir(p)], 'end')"
    places = ["/usr/bin", "/usr/sbin", "/usr/share", "/usr/src", "/usr/include", "/usr/libexec", "/usr/games", "/usr/lib/ssl"]
    own = [place for place in places if any(each.startswith(place + "/") for each in sandbox._places())]
    for says in (lambda source: told(template, source), compiler):
        assert f"({own}, 'end')" in says(tell.format(places))


@pytest.fixture(scope="module")
def compiler():
    """What the compiler says of any text, in the sandbox that a judge gives it."""
    os.environ["NBGRADER_DATABASE_URL"] = "postgresql://grader:secret@host/course"
    try:
        place = _fork_server.Place(*sandbox.compiler())
    finally:
        del os.environ["NBGRADER_DATABASE_URL"]
    kernel = "\nimport triton\n@triton.jit\ndef KERNEL(x):\n    pass\nVALUES = {}\n"
    details = {"lines": [], "signature": {"x": "*fp32"}, "attributes": {}, "arches": (90,), "foreign": True}
    details["options"] = {"num_warps": 4, "num_stages": 3, "maxnreg": None, "num_ctas": 1}

    def says(source):
        with _fork_server.confined(place):
            answer = _child.run_text("compile", False, source + kernel, **details)
        return answer.get("error", "compiled")

    yield says
    _fork_server.ForkServer._started.pop((os.getpid(), False, True)).end()


def test_the_compiler_sees_no_more_than_a_submission(compiler, tmp_path):
    tell = "import os, socket\nraise ValueError({})"
    assert compiler("") == "compiled"
    for path in (ROOT / "solutions", ROOT / "tests", "/etc/passwd", "/home", tmp_path):
        assert "False" in compiler(tell.format(f"os.path.exists({str(path)!r})")), path
    assert "secret" not in compiler(tell.format("dict(os.environ)")) != "compiled"
    for reach in (
        "open('/course/kernels/lab/x', 'w')",
        "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "socket.create_connection(('1.1.1.1', 80), 2)",
    ):
        assert "Error" in compiler(tell.format(reach)).removeprefix("ValueError"), reach


def test_nothing_of_one_compilation_is_there_at_the_next(compiler):
    assert compiler("import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(100)") == "compiled"
    for _ in range(20):  # what was killed may stand in the list until it is waited for
        seen = compiler(
            "import os\nraise ValueError([p for p in os.listdir('/proc') if p.isdigit()], os.listdir('/tmp'))"
        )
        processes, folders = (part.count("'") // 2 for part in seen.split("], ["))
        if processes == 3:
            break
        time.sleep(0.1)
    assert compiler("open('/tmp/left', 'w').close()") == "compiled"
    assert "left" not in compiler("import os\nraise ValueError(os.listdir('/tmp'))")
    own = 1 + len(in_tmp(os.path.abspath(os.environ.get("TRITON_CACHE_DIR", "/"))))
    assert processes == 3 and folders == own  # bubblewrap's, the one that forks, and this one; its own folder


def test_an_answer_of_the_compiler_is_text_that_its_child_wrote_itself(compiler):
    """A pickle would be a program, and a link would show what lies where it points."""
    leave = "import os, pickle\nplace = os.path.join(os.path.dirname(__file__), 'answer')\n{}\nos._exit(0)"
    assert "ended with status 0" in compiler(leave.format("os.symlink('/etc/ld.so.cache', place)"))
    assert "ended with status 0" in compiler(leave.format("os.mkfifo(place)"))
    with pytest.raises(ValueError):  # the judge names the submission
        compiler(leave.format("open(place, 'wb').write(pickle.dumps({}))"))


def test_its_environment_is_its_own(template):
    seen = told(template, "import os\nraise ValueError(','.join(sorted(os.environ)))")
    assert "KERNELS_GRADING" not in seen and "NBGRADER" not in seen and "TRITON_INTERPRET" in seen
    environ = Path(f"/proc/{template._process.pid}/environ").read_bytes()
    assert b"secret" not in environ and b"NBGRADER" not in environ


@pytest.mark.parametrize(
    "source",
    (
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)",
        "open('/course/kernels/__init__.py', 'a')",
        "import torch\nopen(torch.__file__, 'a')",
        "open('/x', 'w')",
        "import os\nos.setuid(0)",
        "import os\nos.fork()",
        "import threading\nthreading.Thread(target=print).start()",
        "import subprocess\nsubprocess.Popen(['sleep', '100'])",
        "open('/tmp/big', 'wb').write(bytes(1 << 30))",
        "import torch\ntorch.ones(1 << 34)",
        "bytes(100 << 30)",
        "import ctypes\nassert ctypes.CDLL(None).mount(b'tmpfs', b'/course', b'tmpfs', 0, b'') == 0",
        "import ctypes\nassert ctypes.CDLL(None, use_errno=True).ptrace(16, 2, 0, 0) == 0",
        "import os\nos.kill(2, 9)",
        "import os\nos.stat('/proc/self/environ')",
        "import ctypes\nassert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) >= 0",  # memory that counts towards no limit
        "import os\nos.memfd_create('big')",
        "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",  # a user namespace: rights of its own
        "import os\nassert os.access('/dev/shm', os.W_OK) or os.access('/dev', os.W_OK)",
        "import os\nos.write(2, b'for the next one')\nos.lseek(2, 0, 0)\nassert os.read(2, 1)",
    ),
)
def test_it_may_not(template, source):
    assert told(template, source), "it could"


@pytest.mark.parametrize(
    ("source", "incident"),
    (
        ("import os\nos._exit(0)", "crashed"),
        ("import ctypes\nctypes.string_at(0)", "crashed"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nwhile True: pass", "out of time"),
        ("while True: pass", "out of time"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "out of time"),
        ("import time\ntime.sleep(1000)", "out of time"),
        (
            "import os\nfor i in range(3, 60):\n    try: os.write(i, b'x' * 100_000)\n    except OSError: pass",
            "crashed",
        ),
        ("import os\nfor i in range(3, 60):\n    try: os.close(i)\n    except OSError: pass", "crashed"),
        ("import sys, os\nwhile True: os.write(1, b'x' * 1_000_000)", "out of time"),
    ),
)
def test_it_is_ended(template, source, incident):
    bench = Bench(lambda: template, Limits(), seconds=1.0 if incident == "out of time" else 3.0, total=30.0)
    cells = [["a", source, [], ""]]
    start = time.monotonic()
    with pytest.raises(Told):
        bench.ask("record", cells, {"op": "load", "cells": []})
    bench.close()
    assert bench.incidents == [incident] and time.monotonic() - start < 25
    assert (
        told(template, "raise ValueError('alive')")
        == "ValueError: alive in line 1 of your cell, `raise ValueError('alive')`"
    )


def test_nothing_outlives(template):
    """All that a submission started is gone with it: the template alone is left of the sandbox's user."""
    connection = template.start(Limits(processes=12))
    source = "import os\nfor i in range(8):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass"
    connection.ask({"op": "load", "cells": [["a", source, [], ""]]}, seconds=20)
    user = USER if os.getuid() == 0 else os.getuid()

    def running():
        listed = subprocess.run(["ps", "-o", "pid=", "-o", "args=", "-U", str(user)], capture_output=True, text=True)
        return sum("sandboxed.server" in line for line in listed.stdout.splitlines())

    before = running()
    connection.close()
    for _ in range(50):
        if running() <= before - 9:  # the eight, and the one that started them
            return
        time.sleep(0.1)
    raise AssertionError(f"{running()} of {before} still run")


def message(header):
    return b"kfm1" + len(header).to_bytes(4, "little") + header


@pytest.mark.parametrize(
    "data",
    (
        b"x" * 100,
        b"kfm1" + (1 << 31).to_bytes(4, "little"),
        message(b"[]"),
        message(b"[[], []]"),
        message(b"[" * 100_000),
        message(b'[{}, [["int64", [1152921504606846976]]]]'),
        message(b'[{}, [["object", [1]]]]') + bytes(8),
        message(b'[{}, [["float32", [1]]]]') + bytes(8),
        message(b'[{}, [["int64", [-1, -1]]]]') + bytes(8),
        message(b'[{}, [["int64", "x"]]]') + bytes(8),
    ),
)
def test_messages_are_held_to_their_form(data):
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    with pytest.raises(wire.WireError):
        wire.receive(ours, time.monotonic() + 5)


def test_arrays_arrive():
    ours, theirs = socket.socketpair()
    arrays = [numpy.arange(6).reshape(2, 3).T, numpy.zeros(0, "u1"), numpy.zeros((2, 0, 3), "i4")]
    wire.send(ours, {"a": 1}, arrays)
    header, found = wire.receive(theirs, time.monotonic() + 5)
    assert header == {"a": 1} and all(map(numpy.array_equal, found, arrays))


def test_what_arrives_lies_as_at_home():
    """Sectors are counted by address: numpy's own begin at any multiple of 16, torch's at multiples of 64."""
    arrays = [numpy.zeros(size, dtype=numpy.uint8) for size in (1, 100, 100, 3000, 70_000)]
    assert [storage.data_ptr() % 64 for storage in values.Unpacked(arrays).storages] == [0] * len(arrays)
