"""The course on a JupyterHub, as docs/jupyterhub.md sets it up: two students and an instructor, each a user of the system."""

import contextlib
import csv
import json
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.course.test_grading import ROOT, solution
from tools.grading.sandbox import why_not

NAME = "01_row_softmax"
COURSE = "kernels-from-math"
PYTHON = f"/usr/bin/python3.{sys.version_info[1]}"  # ours may lie where only root can read
NEEDS = {
    "jupyterhub is not installed": find_spec("jupyterhub"),
    "configurable-http-proxy is not on the PATH": shutil.which("configurable-http-proxy"),
    "only root makes users": os.getuid() == 0 and shutil.which("useradd"),
    f"{PYTHON} is not there: students cannot read root's": os.path.exists(PYTHON),
    why_not(): not why_not(),
}
MISSING = [reason for reason, there in NEEDS.items() if not there]
pytestmark = [
    pytest.mark.classroom,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING) or "all is there"),
]


def documented(first):
    """The block of configuration in docs/jupyterhub.md that has ``first`` in it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jupyterhub.md").read_text(), re.S)
    (block,) = [block for block in blocks if first in block]
    return block


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Hub:
    """A JupyterHub with three users, in a folder that all of them may enter."""

    def __init__(self, place: Path):
        self.place, self.token = place, secrets.token_hex(16)
        mark = secrets.token_hex(3)
        self.users = {role: f"{role}-{mark}" for role in ("ada", "bob", "instructor")}
        self.url = f"http://127.0.0.1:{port()}"
        self.process = None

    def home(self, role):
        return self.place / "home" / self.users[role]

    def prepare(self):
        """The environment, what students get, users, and the instructor's own copy of the course."""
        shared = self.place / COURSE
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", shared / ".venv"], check=True)
        (packages,) = shared.glob(".venv/lib/python3*/site-packages")
        places = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (packages / "course.pth").write_text("\n".join([str(shared), *places]))
        for module, script in {
            "jupyterhub.singleuser:main": "jupyterhub-singleuser",
            "nbgrader.apps:NbGraderApp.launch_instance": "nbgrader",
            "alembic.config:main": "alembic",
        }.items():
            name, _, call = module.partition(":")
            path = shared / ".venv" / "bin" / script
            path.write_text(
                f"#!{shared}/.venv/bin/python\nfrom {name} import {call.partition('.')[0]}\nraise SystemExit({call}())\n"
            )
            path.chmod(0o755)
        for folder in ("etc/jupyter/jupyter_server_config.d", "share/jupyter/kernels"):
            for package in places:
                found = Path(package).parents[2] / folder
                if found.is_dir():
                    shutil.copytree(found, shared / ".venv" / folder, dirs_exist_ok=True)
        shutil.copytree(ROOT / "kernels", shared / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        (self.place / "exchange").mkdir()
        (self.place / "exchange").chmod(0o777)
        (self.place / "etc").mkdir()
        (self.place / "etc" / "nbgrader_config.py").write_text(self.here(documented("c.Exchange.root")))
        (self.place / "home").mkdir()
        for role, user in self.users.items():
            subprocess.run(["useradd", "-m", "-d", self.home(role), "-s", "/bin/bash", user], check=True)
            self.home(role).chmod(0o700)
        desk = self.home("instructor") / COURSE
        ignored = shutil.ignore_patterns("__pycache__")
        for folder in ("kernels", "tools", "exercises", "notebooks"):
            shutil.copytree(ROOT / folder, desk / folder, ignore=ignored)
        shutil.copy(ROOT / "nbgrader_config.py", desk)
        (desk / "roster.csv").write_text(f"student_id\n{self.users['ada']}\n{self.users['bob']}\nabsent\n")
        subprocess.run(["chown", "-R", f"{self.users['instructor']}:", desk], check=True)

    def here(self, text):
        """Configuration as it is documented, with the places of this run."""
        text = text.replace("/srv/", f"{self.place}/").replace("http://127.0.0.1:8000", self.url)
        for role, user in self.users.items():
            text = text.replace(f'"{role}"', f'"{user}"')
        return text

    def start(self):
        config = self.here(documented("LocalProcessSpawner"))
        config += f"""
c.JupyterHub.hub_port = {port()}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{port()}"
c.Spawner.environment["JUPYTER_CONFIG_PATH"] = "{self.place}/etc"
c.JupyterHub.services = [{{"name": "test", "api_token": "{self.token}"}}]
c.JupyterHub.load_roles = [{{"name": "test", "services": ["test"],
    "scopes": ["admin:users", "admin:servers", "access:servers"]}}]
"""
        root = self.place / "hub"
        root.mkdir(mode=0o700)
        (root / "jupyterhub_config.py").write_text(config)
        environment = {**os.environ, "PYTHONPATH": "", "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub"], cwd=root, env=environment,
            stdout=open(root / "log", "w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.until(lambda: self.call("GET", "/hub/api/", refused=True) == 200)

    def stop(self):
        with contextlib.suppress(OSError, AssertionError):
            for role in self.users:
                self.call("DELETE", f"/hub/api/users/{self.users[role]}/server", refused=True)
        if self.process:
            self.process.terminate()
            self.process.wait(60)
        for user in self.users.values():
            with contextlib.suppress(KeyError):
                number = pwd.getpwnam(user).pw_uid
                subprocess.run(["pkill", "-KILL", "-u", str(number)])
                subprocess.run(["userdel", user], check=True)

    def until(self, done, seconds=120):
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if done():
                    return
            assert time.monotonic() < end, (self.place / "hub" / "log").read_text()[-3000:]
            time.sleep(0.5)

    def call(self, method, path, data=None, refused=False):
        """One request to the Hub, or to a user's server behind it; the answer's JSON, or its status with ``refused``."""
        body = None if data is None else json.dumps(data).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, body, headers, method=method), timeout=200
            ) as got:
                text = got.read()
                return got.status if refused else json.loads(text or "{}")
        except urllib.error.HTTPError as error:
            if refused:
                return error.code
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]}") from None

    def log_in(self, role, password):
        """The page that a login in the browser ends at, with the system's own password."""
        import http.cookiejar

        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar := http.cookiejar.CookieJar()))
        opener.open(f"{self.url}/hub/login").read()
        xsrf = next(cookie.value for cookie in jar if cookie.name == "_xsrf")
        form = {"username": self.users[role], "password": password, "_xsrf": xsrf}
        try:
            with opener.open(f"{self.url}/hub/login?next=/hub/home", urllib.parse.urlencode(form).encode()) as page:
                return page.geturl()
        except urllib.error.HTTPError as error:
            return error.code

    def spawn(self, role):
        user = self.users[role]
        self.call("POST", f"/hub/api/users/{user}", refused=True)
        self.call("POST", f"/hub/api/users/{user}/server", refused=True)
        self.until(lambda: (self.call("GET", f"/hub/api/users/{user}")["servers"].get("") or {}).get("ready"))

    def assignments(self, role, action):
        """What a click in the Assignment List asks of the student's server."""
        query = urllib.parse.urlencode({"course_id": COURSE, "assignment_id": NAME})
        return self.call("POST", f"/user/{self.users[role]}/assignments/{action}?{query}")

    def run(self, role, cells, folder=""):
        """Execute cells in one new kernel of a user's server, through its websocket; what each printed, or its error."""
        import asyncio

        return asyncio.run(self._run(self.users[role], cells, folder))

    async def _run(self, user, cells, folder):
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        session = self.call("POST", f"/user/{user}/api/sessions", {
            "kernel": {"name": "python3"}, "name": "", "path": f"{folder}/a.ipynb".lstrip("/"), "type": "notebook",
        })  # fmt: skip
        kernel = session["kernel"]["id"]
        url = f"{self.url.replace('http', 'ws', 1)}/user/{user}/api/kernels/{kernel}/channels"
        socket = await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {self.token}"}))
        printed = []
        for code in cells:
            content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
            message = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": user}
            await socket.write_message(
                json.dumps({"header": message, "parent_header": {}, "metadata": {}, "content": content,
                            "channel": "shell", "buffers": []})
            )  # fmt: skip
            said = ""
            while True:
                got = json.loads(await socket.read_message())
                if got["parent_header"].get("msg_id") != message["msg_id"]:
                    continue
                if got["msg_type"] == "stream":
                    said += got["content"]["text"]
                elif got["msg_type"] == "error":
                    said += f"{got['content']['ename']}: {got['content']['evalue']}"
                elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                    break
            printed.append(said)
        socket.close()
        self.call("DELETE", f"/user/{user}/api/sessions/{session['id']}", refused=True)
        return printed

    def desk(self, program, *command):
        """A command of the instructor's, in the course's folder, without an activated environment."""
        environment = ["PATH=/usr/bin:/bin", f"JUPYTER_CONFIG_PATH={self.place}/etc"]
        environment += [f"HOME={self.home('instructor')}", "OMP_NUM_THREADS=1"]
        path = self.place / COURSE / ".venv" / "bin" / program
        return subprocess.run(
            ["runuser", "-u", self.users["instructor"], "--", "env", "-i", *environment, path, *command],
            cwd=self.home("instructor") / COURSE, capture_output=True, text=True, timeout=500,
        )  # fmt: skip


@pytest.fixture
def hub():
    place = Path(tempfile.mkdtemp(prefix="course-hub-"))
    place.chmod(0o755)
    hub = Hub(place)
    try:
        hub.prepare()
        hub.start()
        yield hub
    finally:
        hub.stop()
        shutil.rmtree(place, ignore_errors=True)


def done(finished):
    """What a command said, which must have come to its end."""
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def test_two_students_hand_in_and_get_their_pages(hub):
    ada, bob = hub.users["ada"], hub.users["bob"]
    nbgrader, python = "nbgrader", "python"
    said = done(hub.desk(nbgrader, "release_assignment", NAME))
    assert f"Released as: {COURSE} {NAME}" in said

    password = secrets.token_hex(12)
    subprocess.run(["chpasswd"], input=f"{ada}:{password}", text=True, check=True)
    assert hub.log_in("ada", "not the password") == 403
    assert hub.log_in("ada", password).endswith("/hub/home")

    for role, answers in (("ada", solution(NAME)), ("bob", {})):
        user = hub.users[role]
        hub.spawn(role)
        assert hub.assignments(role, "fetch")["success"]
        place = f"/user/{user}/api/contents/{NAME}/{NAME}.ipynb"
        notebook = hub.call("GET", place)["content"]
        for cell in notebook["cells"]:
            cell["source"] = answers.get(cell.get("id"), cell["source"])
        hub.call("PUT", place, {"type": "notebook", "format": "json", "content": notebook})
        where, *printed = hub.run(
            role,
            ["import kernels; print(kernels.__file__)"]
            + [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"],
            NAME,
        )
        assert Path(where.strip()).is_relative_to(hub.place / COURSE), where
        assert not any("Error: " in text for text in printed), printed
        assert ("15 of 15 points" in "".join(printed)) == (role == "ada"), printed
        assert hub.assignments(role, "submit")["success"]

    said = hub.run("bob", [
        "bytearray(16 << 30)",
        f"open({str(hub.place / COURSE / 'kernels' / 'runtime.py')!r}, 'a')",
        f"import os; os.listdir({str(hub.place / 'exchange' / COURSE / 'inbound')!r})",
        f"os.listdir({str(hub.home('instructor'))!r})",
        f"os.listdir({str(hub.home('ada'))!r})",
    ])  # fmt: skip
    assert [text.partition(":")[0] for text in said] == ["MemoryError"] + 4 * ["PermissionError"], said

    said = done(hub.desk(nbgrader, "collect", NAME))
    assert said.count("Collecting submission") == 2 and "cheating" not in said, said
    graded = hub.desk(python, "-m", "tools.grade", "--course", ".", "--jobs", "1")
    desk = hub.home("instructor") / COURSE
    with open(desk / "build" / "marks.csv", newline="") as file:
        marks = {row["student_id"]: row for row in csv.DictReader(file)}
    assert marks[ada]["status"] == marks[bob]["status"] == "graded", graded.stdout + graded.stderr
    assert float(marks[ada]["score"]) == float(marks[ada]["max_score"]) > float(marks[bob]["score"])

    done(hub.desk(python, "-m", "tools.desk", "feedback", "--course", "."))
    said = done(hub.desk(nbgrader, "release_feedback", NAME))
    assert said.count("Feedback released") == 2 and "absent handed nothing in" in said, said
    for role in ("ada", "bob"):
        assert hub.assignments(role, "fetch_feedback")["success"]
        (page,) = hub.home(role).glob(f"{NAME}/feedback/*/{NAME}.html")
        assert f"({hub.users[role]})" in page.read_text()

    # Bob hands in under Ada's name, links to the instructor's files, and leaves names that are no names.
    inbound = hub.place / "exchange" / COURSE / "inbound"
    forged = f"""
import os, shutil
inbound, ada, bob = {str(inbound)!r}, {ada!r}, {bob!r}
late = "2999-01-01 00:00:00 UTC+x"
shutil.copytree("{NAME}", f"{{inbound}}/{{ada}}+{NAME}+{{late}}")
os.symlink("{desk}/submitted/{{ada}}/{NAME}".format(ada=ada), f"{{inbound}}/{{bob}}+{NAME}+{{late}}")
os.symlink("/nowhere", f"{{inbound}}/{{ada}}+{NAME}+2999-02-02 00:00:00 UTC+y")
os.mkdir(f"{{inbound}}/{{ada}}+{NAME}+whenever+z")
print("done")
"""
    assert hub.run("bob", [forged]) == ["done\n"]
    before = (desk / "submitted" / ada / NAME / f"{NAME}.ipynb").read_bytes()
    said = done(hub.desk(nbgrader, "collect", NAME, "--update"))
    assert f"was made by {bob}, and counts as a submission of {bob}" in said, said
    assert (desk / "submitted" / ada / NAME / f"{NAME}.ipynb").read_bytes() == before
    assert not any(path.is_symlink() for path in (desk / "submitted").rglob("*"))
