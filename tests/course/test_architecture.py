"""The arrows between the parts of the repository, read from the imports; and what else holds for all of its code.

notebooks, lessons → lab, check, gluon_model, lessons, operators;  check → lab, gluon_model, reference.py of the rooms;
gluon_model → lab (how figures look, Triton's private names);  lab → runtime;  rooms → common → runtime;
lab, check, gluon_model, benchmarks → common.lines (how long a line of text may be);
runtime → _low_precision, _triton_interpreter, _triton_mode;  lab's private names → _low_precision;
benchmarks → operators, lessons, lab.roofline, and the tuner → common.configs, whose tables it writes.
"""

import ast
import functools
import json
from pathlib import Path

import pytest

from tools.kernel_environment import ROOT

FURNITURE = {"__init__.py", "reference.py", "operator.py"}
# The ways that a room can go, a folder each; a room with one way has its passes beside its plan.
WAYS = {
    "conv_wgrad": set(),
    "dynamic_conv": set(),
    "flex_attention": {"hopper", "mods"},
    "recurrent_attention": {"chunk"},
}
TRITONS_PRIVATE = ("_low_precision.py", "_triton_interpreter.py", "_triton_mode.py", "_triton_private.py")
INSTRUMENTS = ("lab", "check", "gluon_model")
ROOMS = sorted(WAYS)
SOURCES = sorted([*ROOT.glob("kernels/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def exists(module: str, root: Path = ROOT) -> bool:
    path = root.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file's syntax, read once for all tests."""
    return ast.parse(path.read_text())


def imports(source: str | ast.Module, module: str, *, is_package: bool = False) -> set[str]:
    """The modules of `kernels` that ``source`` imports, anywhere in it, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                up = parts[: len(parts) - node.level + is_package]
                base = ".".join([*up, *filter(None, [node.module])])
            found |= {f"{base}.{a.name}" if exists(f"{base}.{a.name}") else base for a in node.names}
    return {name for name in found if name.split(".")[0] == "kernels"}


def may(importer: str, imported: str) -> bool:
    """Whether an arrow from ``importer`` to ``imported`` is one of the architecture's."""
    part = imported.split(".")[1] if "." in imported else "kernels"
    if part in ("runtime", "kernels"):  # importing the package is importing the runtime
        return True
    top, *rest = importer.split(".")
    if top == "notebooks":
        return part in (*ROOMS, *INSTRUMENTS, "lessons") and not any(p.startswith("_") for p in imported.split("."))
    if imported == "kernels.common.lines" and (top == "benchmarks" or rest and rest[0] in INSTRUMENTS):
        return True
    if top == "benchmarks":
        writers = ("benchmarks.tune", "benchmarks.dynamic_conv_cost", "benchmarks.dynamic_conv_tiles")
        if importer in writers and imported == "kernels.common.configs":
            return True  # these write the tables that are read there, or what is chosen with them
        if importer == "benchmarks.flex_attention" and imported == "kernels.common.operator":
            return True  # it empties the plans when it changes what they were made from
        if importer == "benchmarks.populations.report" and imported in ("kernels.lab.style", "kernels.lab.machine_record"):
            return True  # its plots look as the lessons' do
        return part in (*ROOMS, "lessons") or imported == "kernels.lab.roofline"
    mine = rest[0] if rest else "kernels"
    below = ("_low_precision", "_triton_interpreter", "_triton_mode")  # what the runtime puts right
    if part in below:
        return mine == "runtime" or (importer, part) == ("kernels.lab._triton_private", "_low_precision")
    if mine in ("kernels", "runtime", *below):
        return False
    if mine == "common":
        return part == "common"
    if mine in ROOMS:
        return part in ("common", mine)
    if mine == "check":
        return part in INSTRUMENTS or (part in ROOMS and imported.endswith(".reference"))
    if mine == "gluon_model":
        return part in ("gluon_model", "lab")
    if mine == "lessons":  # a notebook's own lines
        return may("notebooks", imported)
    assert mine == "lab", f"{importer} belongs to no part of the architecture"
    return part == "lab"


def test_imports_follow_the_arrows():
    found = {module_of(p): imports(tree(p), module_of(p), is_package=p.name == "__init__.py") for p in SOURCES}
    assert [(module, name) for module, names in found.items() for name in sorted(names) if not may(module, name)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_lab_and_the_operators(path):
    for cell in json.loads(path.read_text())["cells"]:
        lines = [line for line in "".join(cell["source"]).splitlines() if not line.lstrip().startswith(("%", "!"))]
        if cell["cell_type"] == "code":
            assert [n for n in sorted(imports("\n".join(lines), "notebooks")) if not may("notebooks", n)] == []


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("kernels.dynamic_conv.forward", "kernels.common.operator", True),
        ("kernels.dynamic_conv.forward", "kernels.lab", False),
        ("kernels.dynamic_conv.forward", "kernels.runtime", True),
        ("kernels.common.operator", "kernels.dynamic_conv", False),
        ("kernels.common.operator", "kernels.lab.trace", False),
        ("kernels.runtime", "kernels.common.operator", False),
        ("kernels.runtime", "kernels._triton_interpreter", True),
        ("kernels.lab.trace", "kernels._triton_interpreter", False),
        ("kernels.lab.trace", "kernels.common.operator", False),
        ("kernels.lab.trace", "kernels.common.lines", True),
        ("kernels.lab.trace", "kernels.dynamic_conv.reference", False),
        ("kernels.check.framework", "kernels.dynamic_conv.reference", True),
        ("kernels.check.framework", "kernels.dynamic_conv", False),
        ("kernels.check.framework", "kernels.lab.trace", True),
        ("kernels.lab.trace", "kernels.check.framework", False),
        ("kernels.gluon_model.picture", "kernels.lab.style", True),
        ("kernels.gluon_model.picture", "kernels.check.framework", False),
        ("kernels.dynamic_conv.forward", "kernels.check", False),
        ("benchmarks.dynamic_conv", "kernels.lab.trace", False),
        ("benchmarks.dynamic_conv", "kernels.lab.roofline", True),
        ("benchmarks.dynamic_conv", "kernels.common.configs", False),
        ("notebooks", "kernels.dynamic_conv", True),
        ("notebooks", "kernels.lab._pictures", False),
        ("notebooks", "kernels.common.operator", False),
    ],
)
def test_the_arrows_are_those_of_the_architecture(importer, imported, allowed):
    assert may(importer, imported) is allowed


def test_every_way_of_importing_is_read():
    source = "import kernels.lab\nfrom kernels import runtime\nfrom kernels.lab import compare, style\nimport torch"
    assert imports(source, "x") == {"kernels.lab", "kernels.runtime", "kernels.lab.compare", "kernels.lab.style"}
    assert imports("def f():\n    from . import plain", "kernels.dynamic_conv.operator") == {
        "kernels.dynamic_conv.plain"
    }
    assert imports("from .plain import tap", "kernels.dynamic_conv", is_package=True) == {
        "kernels.dynamic_conv.plain"
    }


def test_the_package_is_laid_out_in_these_folders():
    package = ROOT / "kernels"
    assert {path.name for path in package.glob("*.py")} == {"__init__.py", "runtime.py", *TRITONS_PRIVATE[:3]}
    folders = {path.parent for path in package.glob("*/**/*.py")}
    parts = {"common", *INSTRUMENTS, "check/clinics", "check/exercises", "check/lessons", "lessons", *ROOMS}
    parts |= {"lab/drawings", "lab/measured"}
    parts |= {f"{room}/{way}" for room in ROOMS for way in WAYS[room]}
    assert {folder.relative_to(package).as_posix() for folder in folders} == parts
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []  # no wheel would hold it


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_its_furniture(room):
    inside = {path.name for path in (ROOT / "kernels" / room).glob("*.py")}
    assert FURNITURE - inside == set()


@pytest.mark.parametrize("room", ROOMS)
def test_only_the_operator_and_its_plan_choose_among_backends(room):
    """Whoever else imports two backends' kernels would decide beside them; a backend may build on another."""
    outside = [path for path in (ROOT / "kernels" / room).glob("*.py") if path.name not in ("operator.py", "plan.py")]
    for path in outside:
        found = {name.split(".")[2] for name in imports(path.read_text(), module_of(path)) if name.count(".") > 1}
        assert len(found & WAYS[room] - {"mods"}) < 2, path.name  # which launches nothing


def calls(tree: ast.AST, name: str) -> list[int]:
    """The lines that mention ``name``, a dotted name of any depth."""
    return [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute | ast.Name) and ast.unparse(n) == name]


def test_only_the_runtime_asks_whether_there_is_a_gpu():
    assert [module_of(p) for p in SOURCES if calls(tree(p), "torch.cuda.is_available")] == ["kernels.runtime"]


def test_no_operator_prints_or_synchronises():
    parts = [ROOT / "kernels" / name for name in (*ROOMS, "common")]
    operators = [p for p in SOURCES if any(map(p.is_relative_to, parts))]
    assert [module_of(p) for p in operators if calls(tree(p), "print") + calls(tree(p), "torch.cuda.synchronize")] == []


def test_tritons_private_names_stay_in_three_files():
    found = {
        (path.name, getattr(node, "module", None) or node.names[0].name)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    private = ("triton.runtime.interpreter", "triton._C")
    assert [one for one in found if one[1].startswith(private) and one[0] not in TRITONS_PRIVATE] == []
