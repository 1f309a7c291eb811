"""What type checkers see: every public function and layer says what it takes and gives, and the package says that it does."""

import ast
import inspect
from pathlib import Path

import pytest

import kernels
from kernels import conv_wgrad, dynamic_conv, flex_attention, recurrent_attention
from kernels.dynamic_conv import causal_conv1d, jet_nemotron
from kernels.flex_attention import mods

PACKAGES = (dynamic_conv, recurrent_attention, flex_attention, conv_wgrad)
PUBLIC = [
    getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    if getattr(getattr(package, name), "__module__", "").startswith(package.__name__) and name not in ("ModError",)
]
FUNCTIONS = [f for f in PUBLIC if inspect.isfunction(f)]
FUNCTIONS += [f.explain for f in FUNCTIONS if hasattr(f, "explain")]
FUNCTIONS += [getattr(mods, name) for name in mods.__all__ if name not in ("Mod", "noop_mask")]  # the last is torch's
FUNCTIONS += [causal_conv1d.causal_conv1d_fn, causal_conv1d.causal_conv1d_update, conv_wgrad.Conv2d.forward]
FUNCTIONS += [dynamic_conv.DynamicShortConvolution.forward, dynamic_conv.DynamicShortConvolution.step]
FUNCTIONS += [jet_nemotron.DynamicShortConvolution.__init__, jet_nemotron.DynamicShortConvolution.forward]


def test_all_are_there():
    assert len(FUNCTIONS) >= 50 and (Path(kernels.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_arguments_and_results_have_types(function):
    signature = inspect.signature(function, eval_str=True)
    assert signature.return_annotation is not signature.empty
    named = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in named if p.annotation is p.empty] == []


def signature(arguments):
    """Names, kinds, which have a default, types as they are written."""
    given = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(given) - len(arguments.defaults)) + arguments.defaults
    parts = [(a, d, False) for a, d in zip(given, defaults, strict=True) if a.arg != "self"]
    parts += [(a, d, True) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [(a.arg, ast.unparse(a.annotation), d is not None, keyword) for a, d, keyword in parts]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__.split(".")[-1])
def test_stubs_say_what_the_functions_take(package):
    """The last form of each is the function's own signature; the others narrow what it gives."""
    folder = Path(package.__file__).parent
    stub = ast.parse((folder / "__init__.pyi").read_text())
    functions = [node for node in ast.parse((folder / "operator.py").read_text()).body if isinstance(node, ast.FunctionDef)]
    source = {node.name: node for node in functions}
    kinds = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    named = {n.target.id: kinds[n.annotation.id] for n in stub.body if isinstance(n, ast.AnnAssign)}
    assert named and set(kinds) == {kind.name for kind in named.values()}
    for name, kind in named.items():
        *narrower, own = [node for node in kind.body if node.name == "__call__"]
        assert signature(own.args) == signature(source[name].args)
        assert ast.unparse(own.returns) == ast.unparse(source[name].returns)
        for form in narrower:
            assert {part[0] for part in signature(form.args)} == {part[0] for part in signature(own.args)}
        (explain,) = [node for node in kind.body if node.name == "explain"]
        assert signature(explain.args) == signature(own.args) and ast.unparse(explain.returns) == "str"
        carried = {node.name for node in kind.body} - {"__call__"}
        assert all(callable(getattr(getattr(package, name), attribute)) for attribute in carried)
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {None} | set(named) == set(package.__all__)
