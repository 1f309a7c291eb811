"""A class larger than a file or a machine: a PostgreSQL gradebook with two graders, Dask with two workers; one is killed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.course.hostile import ATTACKS, FULL, NAME
from tests.course.test_grading import ROOT, grade, hand_in, marks, solution
from tools.grading.gradebook import Book
from tools.grading.sandbox import why_not

pytestmark = [
    pytest.mark.classroom,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a sandbox"),
]
STUDENTS = 8


def a_class(folder, first=0):
    """Students of whom every second one has solved the exercise."""
    shutil.copytree(ROOT / "exercises", folder / "exercises")
    for number in range(first, first + STUDENTS):
        hand_in(folder, f"s{number:02}", NAME, solution(NAME) if number % 2 else None)
    return folder


def and_an_endless_one(folder):
    """A submission that keeps its judge busy for a while."""
    attack = next(attack for attack in ATTACKS if attack.name == "endless loop")
    attack.plant(folder / "submitted" / "endless" / NAME)
    return folder


def start(*command, **more):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)], cwd=ROOT, env=environment | more.pop("env", {}),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def until(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def server():
    """A PostgreSQL server of our own, and its address."""
    pytest.importorskip("psycopg")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    as_user = []
    if os.getuid() == 0:  # the server refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    os.chmod(folder, 0o755)
    run = [*as_user, f"{found[-1]}/pg_ctl", "-D", f"{folder}/data"]
    subprocess.run(
        [*run, "initdb", "-s", "-o", "-A trust -U grader"], check=True, cwd=folder, stdout=subprocess.DEVNULL
    )
    listen = f"-c listen_addresses='' -c unix_socket_directories={folder}"
    subprocess.run([*run, "-w", "-s", "-l", f"{folder}/log", "-o", listen, "start"], check=True, cwd=folder)
    try:
        yield f"postgresql+psycopg://grader@/postgres?host={folder}"
    finally:
        subprocess.run([*run, "-m", "immediate", "-s", "stop"], check=True, cwd=folder)
        shutil.rmtree(folder)


def test_two_graders_write_into_one_server_and_one_is_killed(tmp_path, server, monkeypatch):
    monkeypatch.setenv("NBGRADER_DATABASE_URL", server)
    courses = [a_class(tmp_path / name, first) for name, first in (("a", 0), ("b", STUDENTS))]
    both = [start("tools.grade", "--course", course, "--jobs", "1") for course in courses]
    until(lambda: list((courses[0] / "build").rglob("s*.json")))
    both[0].kill()
    both[0].wait()
    assert both[1].wait(timeout=300) == 0
    again = grade(courses[0])
    assert again.returncode == 0, again.stderr
    with Book(server) as book:
        found = {student: book.mark(NAME, student)["raw_score"] for student in book.students()}
    assert found == {f"s{number:02}": float(FULL) * (number % 2) for number in range(2 * STUDENTS)}


def test_a_judge_that_is_killed_is_replaced(tmp_path):
    course = and_an_endless_one(a_class(tmp_path))
    grader = start("tools.grade", "--course", course, "--jobs", "2", "--seconds", "20")
    until(lambda: list((course / "build").rglob("s*.json")))
    for line in subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(grader.pid)], capture_output=True, text=True
    ).stdout.splitlines():
        if "spawn_main" in line:
            os.kill(int(line.split()[0]), 9)
            break
    else:
        raise AssertionError("no judge's process was found")
    assert grader.wait(timeout=400) == 1
    found = {student: row["status"] for (student, _), row in marks(course).items()}
    assert found == dict.fromkeys([f"s{number:02}" for number in range(STUDENTS)], "graded") | {
        "endless": "out of time"
    }


def test_each_submission_is_graded_once_though_a_worker_is_killed(tmp_path):
    pytest.importorskip("distributed")
    course = and_an_endless_one(a_class(tmp_path))
    file = tmp_path / "scheduler.json"
    quiet = {"DASK_DISTRIBUTED__DASHBOARD__LINK": ""}
    scheduler = start(
        "distributed.cli.dask_scheduler", "--scheduler-file", file, "--no-dashboard", "--port", "0", env=quiet
    )
    until(file.exists)
    worker = (
        "distributed.cli.dask_worker",
        "--scheduler-file",
        file,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    )
    workers = [start(*worker, "--local-directory", tmp_path / f"w{i}") for i in range(2)]
    try:
        address = json.loads(file.read_text())["address"]
        grader = start("tools.grade", "--course", course, "--scheduler", address, "--seconds", "20")
        until(lambda: list((course / "build").rglob("s*.json")))
        workers[0].kill()
        assert grader.wait(timeout=400) == 1
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
    scores = {student: row["score"] for (student, _), row in marks(course).items()}
    assert scores == {f"s{number:02}": str(float(FULL) * (number % 2)) for number in range(STUDENTS)} | {"endless": "0.0"}
    assert marks(course)["endless", NAME]["status"] == "out of time"
    assert len(list((course / "build").rglob("*.json"))) == STUDENTS + 1
