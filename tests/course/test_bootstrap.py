"""tools/bootstrap.py: every way in which setting up can go, without a network."""

import ast
import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest

from tools import bootstrap


@pytest.fixture
def installed():
    """The (constraints, extras) of every installation, in order."""
    return []


@pytest.fixture
def repository(tmp_path, monkeypatch, installed):
    """A repository of which only what bootstrap reads exists; installing it is a .pth file, as -e makes one."""
    (tmp_path / "constraints").mkdir()
    for name in ("cpu", "gpu"):
        (tmp_path / "constraints" / f"{name}.txt").write_text("torch\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("")

    def create(venv):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)

    def install(venv, choice, extras):
        installed.append((choice, extras))
        (site_packages(venv) / "course.pth").write_text(f"{tmp_path}\n")

    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "create", create)
    monkeypatch.setattr(bootstrap, "install", install)
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def site_packages(venv) -> Path:
    return next(venv.glob("lib/python*/site-packages"))


def command_named(name, folder, script) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


class Spy:
    """Stands in for subprocess.run: notes the commands, and answers with one exit status."""

    def __init__(self, returncode=0):
        self.commands, self.returncode = [], returncode

    def __call__(self, command, **kwargs):
        self.commands.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, self.returncode)


@pytest.mark.parametrize(("system", "name"), [("Darwin", "macOS"), ("Windows", "Windows")])
def test_a_system_without_triton_is_pointed_to_the_devcontainer_and_colab(monkeypatch, capsys, system, name):
    monkeypatch.setattr(bootstrap.platform, "system", lambda: system)
    assert bootstrap.main([]) == 1
    message = capsys.readouterr().err
    assert all(word in message for word in (name, "devcontainer", "Colab")) and message.count("\n") == 1


def test_an_old_python_is_named_with_what_it_takes(monkeypatch, capsys):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 4))
    assert bootstrap.main([]) == 1
    message = capsys.readouterr().err
    assert "Python 3.10" in message and "3.11" in message and "PYTHON=" in message and message.count("\n") == 1


def test_an_old_python_can_read_the_script_so_far():
    ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 7))


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_module_is_named_with_its_package(monkeypatch, tmp_path, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(bootstrap.Problem, match=rf"`{module}`.*apt install python3\.\d+-venv"):
        bootstrap.create(tmp_path / "venv")


@pytest.mark.parametrize(("script", "expected"), [("exit 0", True), ("exit 9", False), (None, False)])
def test_a_gpu_is_there_when_its_driver_answers(monkeypatch, tmp_path, script, expected):
    if script:
        command_named("nvidia-smi", tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.has_nvidia_gpu() is expected


@pytest.mark.parametrize(("gpu", "choice"), [(True, "gpu"), (False, "cpu")])
def test_the_gpu_decides_the_constraints_unless_they_are_named(monkeypatch, repository, installed, gpu, choice):
    monkeypatch.setattr(bootstrap, "has_nvidia_gpu", lambda: gpu)
    assert bootstrap.main([]) == 0
    assert bootstrap.main(["--constraints", "oldest-triton", "--venv", ".venv-oldest"]) == 0
    assert installed == [(choice, "lab,test"), ("oldest-triton", "lab,test")]


def test_nothing_changed_nothing_done_in_less_than_a_second(repository, installed, capsys):
    assert bootstrap.main([]) == 0 and capsys.readouterr().out == ".venv is set up\n"
    start = time.monotonic()
    assert bootstrap.main([]) == 0 and capsys.readouterr().out == ""
    assert time.monotonic() - start < 1 and len(installed) == 1


def test_jupyterlab_is_configured_once(repository, installed):
    assert bootstrap.main([]) == 0
    files = [repository / ".venv" / "etc" / "jupyter" / f"{name}.json" for name in bootstrap.LAB]
    assert [json.loads(file.read_text()) for file in files] == list(bootstrap.LAB.values())
    files[0].write_text("{}")  # an author's
    assert bootstrap.main([]) == 0 and files[0].read_text() == "{}"


def test_jupyterlab_has_what_is_configured():
    share = Path(sys.prefix, "share", "jupyter")
    for name, values in bootstrap.LAB["labconfig/default_setting_overrides"].items():
        schema = json.loads((share / "lab" / "schemas" / f"{name.replace(':', '/')}.json").read_text())
        assert values.keys() <= schema["properties"].keys()
        jsonschema.validate(values, schema)
    programs = (share / "labextensions" / "@jupyter" / "nbgrader" / "static").glob("*.js")
    text = "".join(file.read_text() for file in programs)
    assert all(f'id:"{name}"' in text for name in bootstrap.LAB["labconfig/page_config"]["disabledExtensions"])


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints/cpu.txt"])
def test_a_changed_requirement_is_installed(repository, installed, name):
    bootstrap.main([])
    (repository / name).write_text("# changed\n")
    bootstrap.main([])
    assert len(installed) == 2


def test_an_interrupted_installation_is_taken_up_again(monkeypatch, repository, installed):
    install = bootstrap.install

    def interrupted(*arguments):
        install(*arguments)
        raise KeyboardInterrupt

    bootstrap.main([])
    (repository / "pyproject.toml").write_text("# changed\n")
    monkeypatch.setattr(bootstrap, "install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.main([])
    (repository / "pyproject.toml").write_text("[project]\n")  # as before: only a stamp left behind could hide it
    monkeypatch.setattr(bootstrap, "install", install)
    assert bootstrap.main([]) == 0 and len(installed) == 3


@pytest.mark.share(2)
@pytest.mark.parametrize("broken", ["exit 1", None])
def test_a_half_made_environment_is_made_anew_and_a_whole_one_is_kept(monkeypatch, tmp_path, capfd, broken):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    if broken:
        command_named("python", venv / "bin", broken)
    bootstrap.create(venv)
    assert subprocess.run([venv / "bin" / "pip", "--version"], capture_output=True).returncode == 0
    (venv / "kept").touch()
    bootstrap.create(venv)
    assert (venv / "kept").exists()
    assert capfd.readouterr().out.count("Creating venv") == 1


def test_an_environment_of_another_python_is_made_anew(monkeypatch, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    command_named("python", tmp_path / "venv" / "bin", "echo False")
    spy = Spy()
    spy.stdout = ""
    real = subprocess.run
    monkeypatch.setattr(
        bootstrap.subprocess, "run", lambda c, **k: spy(c, **k) if str(c[0]) == sys.executable else real(c, **k)
    )
    bootstrap.create(tmp_path / "venv")
    assert spy.commands == [[sys.executable, "-m", "venv", "--clear", str(tmp_path / "venv")]]


@pytest.mark.parametrize(
    ("choice", "answers", "asked"),
    [("cpu", True, True), ("cpu", False, False), ("oldest-triton", True, True), ("gpu", True, False)],
)
def test_the_cpu_index_is_asked_only_when_it_answers_and_only_without_a_gpu(
    monkeypatch, tmp_path, choice, answers, asked
):
    spy = Spy()
    monkeypatch.setattr(bootstrap.subprocess, "run", spy)
    monkeypatch.setattr(bootstrap, "reachable", lambda url: answers)
    bootstrap.install(tmp_path, choice, "lab,test")
    (command,) = spy.commands
    assert (bootstrap.CPU_INDEX in command) is asked
    assert command[command.index("-c") + 1] == str(bootstrap.ROOT / "constraints" / f"{choice}.txt")
    assert command[command.index("-e") + 1] == f"{bootstrap.ROOT}[lab,test]"


def test_a_layer_installs_only_what_is_pinned_otherwise(repository, monkeypatch, capsys):
    (repository / "constraints" / "oldest.txt").write_text("# the old end\n-c common.txt\ntorch==2.1\ntriton==3.7\n")
    layer = ["--venv", ".venv-oldest", "--constraints", "oldest", "--base", ".venv"]
    assert bootstrap.main(layer) == 1 and "set it up first" in capsys.readouterr().err
    assert bootstrap.main([]) == 0
    below = site_packages(repository / ".venv")
    for name in ("torch-2.1+cpu", "triton-3.9.0", "triton_kernels-3.7"):
        (below / f"{name}.dist-info").mkdir()
    (below / "of_the_base.py").write_text("")
    (repository / ".venv" / "bin" / "alembic").write_text("called by name")
    real, pip = subprocess.run, Spy()
    monkeypatch.setattr(
        bootstrap.subprocess, "run", lambda c, **k: pip(c, **k) if "pip" in map(str, c) else real(c, **k)
    )
    monkeypatch.setattr(bootstrap, "reachable", lambda url: False)
    assert bootstrap.main(layer) == 0
    ((*_, option, target, package),) = pip.commands
    above = site_packages(repository / ".venv-oldest")
    assert (option, target, package) == ("--target", str(above), "triton==3.7")
    assert (repository / ".venv-oldest" / "bin" / "alembic").read_text() == "called by name"
    (above / "triton.py").write_text("")
    (below / "triton.py").write_text("")
    show = "import triton, of_the_base, kernels; print(triton.__file__); print(kernels.__file__)"
    python = repository / ".venv-oldest" / "bin" / "python"
    shown = real([python, "-c", show], capture_output=True, text=True, check=True, cwd=repository.parent).stdout.split()
    assert shown == [str(above / "triton.py"), str(repository / "kernels" / "__init__.py")]
    assert bootstrap.main(layer) == 0 and len(pip.commands) == 1  # it stands
    (repository / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert bootstrap.main([]) == 0 and bootstrap.main(layer) == 0 and len(pip.commands) == 2


def test_a_layer_takes_an_extra_with_the_python_that_sees_what_lies_below(repository, monkeypatch):
    (repository / "pyproject.toml").write_text(
        '[project]\n[project.optional-dependencies]\ntest = ["pytest"]\nprograms = ["timm>=1", "mypy"]\n'
    )
    layer = ["--venv", ".venv-programs", "--base", ".venv", "--extras", "programs"]
    assert bootstrap.main([]) == 0
    real, pip = subprocess.run, Spy()
    monkeypatch.setattr(
        bootstrap.subprocess, "run", lambda c, **k: pip(c, **k) if "pip" in map(str, c) else real(c, **k)
    )
    monkeypatch.setattr(bootstrap, "reachable", lambda url: url == bootstrap.CPU_INDEX)
    assert bootstrap.main(layer) == 0
    (command,) = pip.commands
    assert command[:2] == [str(repository / ".venv-programs" / "bin" / "python"), "-m"] and "--target" not in command
    assert command[command.index("-c") + 1 :] == [
        *(str(repository / "constraints" / "cpu.txt"), "timm>=1", "mypy"),
        *("--extra-index-url", bootstrap.CPU_INDEX),
    ]
    assert bootstrap.main(layer) == 0 and len(pip.commands) == 1  # it stands
    assert bootstrap.main([*layer[:-1], "test"]) == 0 and pip.commands[1][-3] == "pytest"


@pytest.mark.parametrize(("network", "why"), [(True, "its reason is above"), (False, "is there a network?")])
def test_a_failing_pip_is_a_problem(monkeypatch, tmp_path, network, why):
    monkeypatch.setattr(bootstrap.subprocess, "run", Spy(returncode=1))
    monkeypatch.setattr(bootstrap, "reachable", lambda url: network)
    with pytest.raises(bootstrap.Problem, match=rf"pip could not install the course \(.*{re.escape(why)}"):
        bootstrap.install(tmp_path, "cpu", "lab")


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_named(repository, installed, monkeypatch, capsys):
    usage = shutil.disk_usage(repository)._replace(free=10**8)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda folder: usage)
    assert bootstrap.main([]) == 1
    assert f"The disk of {repository} has 0.1 GB left, the course takes 3" in capsys.readouterr().err
    monkeypatch.setattr(bootstrap.os, "access", lambda folder, mode: False)  # root may write anywhere
    assert bootstrap.main([]) == 1
    assert f"{repository} cannot be written to: clone" in capsys.readouterr().err
    assert not installed and not (repository / ".venv").exists()


def test_a_failing_pip_is_a_problem_for_a_layer(repository, monkeypatch, capsys):
    (repository / "constraints" / "oldest.txt").write_text("triton==3.7\n")
    assert bootstrap.main([]) == 0
    real = subprocess.run
    failing = Spy(returncode=1)
    monkeypatch.setattr(
        bootstrap.subprocess, "run", lambda c, **k: failing(c, **k) if "pip" in map(str, c) else real(c, **k)
    )
    monkeypatch.setattr(bootstrap, "reachable", lambda url: False)
    assert bootstrap.main(["--venv", ".venv-oldest", "--constraints", "oldest", "--base", ".venv"]) == 1
    assert "pip could not install" in capsys.readouterr().err


def test_reachable_says_yes_to_a_server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        assert bootstrap.reachable(f"http://127.0.0.1:{server.server_port}")


def test_reachable_gives_up_on_a_closed_port_and_on_a_server_that_is_silent():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not bootstrap.reachable(url)
        silent.listen()
        start = time.monotonic()
        assert not bootstrap.reachable(url)
        assert time.monotonic() - start < 6


def test_an_unrelated_distribution_named_kernels_is_named(repository, capsys):
    bootstrap.main([])
    packages = site_packages(repository / ".venv")
    (packages / "kernels").mkdir()
    (packages / "kernels" / "__init__.py").write_text("")
    (packages / "kernels-0.4.2.dist-info").mkdir()
    (packages / "kernels-0.4.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.4.2\n"
    )
    assert bootstrap.main([]) == 1
    message = capsys.readouterr().err
    assert "`kernels 0.4.2`" in message and "pip uninstall kernels" in message and message.count("\n") == 1


def test_another_kernels_on_the_path_is_named(repository, tmp_path_factory, monkeypatch, capsys):
    bootstrap.main([])
    other = tmp_path_factory.mktemp("other") / "kernels"
    other.mkdir()
    (other / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    assert bootstrap.main([]) == 1
    message = capsys.readouterr().err
    assert str(other) in message and "unset PYTHONPATH" in message and message.count("\n") == 1
