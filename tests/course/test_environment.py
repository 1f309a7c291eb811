"""environment.yml asks conda for what pyproject.toml asks pip for, and the constraints lie inside those ranges."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec

from tools.kernel_environment import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
PIP = next(line["pip"] for line in ENVIRONMENT["dependencies"] if isinstance(line, dict))
TOOLS = {"pip", "git", "make"}  # what the course's commands need and a Python package cannot ask for
CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))


def wanted() -> dict[str, Requirement]:
    lines = PROJECT["dependencies"] + [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def pins(path) -> dict[str, SpecifierSet]:
    """The requirements of a constraints file, with those of the file it includes."""
    found = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-c "):
            found |= pins(path.parent / line[3:])
        elif line:
            requirement = Requirement(line)
            found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


@pytest.mark.parametrize("line", CONDA)
def test_a_conda_line_is_one_that_conda_reads(line):
    spec = MatchSpec(line)
    name = canonicalize_name(spec.name.normalized if hasattr(spec.name, "normalized") else str(spec.name))
    if name in TOOLS:
        assert spec.version is None
    else:
        asked = PROJECT["requires-python"] if name == "python" else wanted()[name].specifier
        assert SpecifierSet(str(spec.version)) == SpecifierSet(str(asked))


def test_the_pip_section_is_pyprojects():
    *requirements, this = PIP
    assert this == "-e ."
    for requirement in map(Requirement, requirements):
        asked = wanted()[canonicalize_name(requirement.name)]
        assert (requirement.specifier, str(requirement.marker)) == (asked.specifier, str(asked.marker))


def test_the_two_routes_ask_for_the_same_packages():
    conda = {canonicalize_name(re.match(r"[\w-]+", line)[0]) for line in CONDA} - TOOLS - {"python"}
    pip = {canonicalize_name(Requirement(line).name) for line in PIP if not line.startswith("-")}
    assert not conda & pip
    # What `make test-programs` and `make book` install beside the course.
    beside = PROJECT["optional-dependencies"]["programs"] + PROJECT["optional-dependencies"]["book"]
    assert conda | pip == set(wanted()) - {canonicalize_name(Requirement(line).name) for line in beside}


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.stem)
def test_a_constraint_lies_inside_the_range_that_pyproject_declares(path):
    for name, specifier in pins(path).items():
        version = Version(next(iter(specifier)).version)
        assert len(specifier) == 1
        if name in wanted():
            assert version in wanted()[name].specifier, name


@pytest.mark.parametrize(
    ("name", "torch", "triton"),
    [("cpu", "==2.13.0", "<=3.9.0"), ("gpu", "==2.15.0", "==3.9.0"), ("oldest-triton", "==2.13.0", "==3.7.1")],
)
def test_each_choice_names_its_pair_and_shares_the_tools(name, torch, triton):
    chosen = pins(ROOT / "constraints" / f"{name}.txt")
    assert (str(chosen["torch"]), str(chosen["triton"])) == (torch, triton)
    assert pins(ROOT / "constraints" / "common.txt").items() <= chosen.items()
