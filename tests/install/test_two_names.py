"""The wheel's name and the course's: one source, beside another distribution that is called ``kernels``."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough  # a wheel is built
ROOT = Path(__file__).parent.parent.parent
SOURCES = ("kernels", "setup.py", "pyproject.toml", "README.md", "LICENSE", "kernels_from_math.py")


def python(*arguments, cwd, executable=sys.executable, **environ):
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [executable, *arguments], cwd=cwd, env=clean | environ, capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


USE = """
import sys, torch, kernels_from_math
from kernels_from_math.flex_attention import flex_attention, mods, causal_block_mask
from kernels_from_math.dynamic_conv import dynamic_conv
from kernels_from_math import check, conv_wgrad, recurrent_attention, runtime
q = torch.randn(1, 1, 20, 16, device=runtime.device, requires_grad=True)
o = flex_attention(q, q, q, mods.softcap(3.0), causal_block_mask(20))
x, w = torch.randn(1, 5, 4, device=runtime.device), torch.randn(4, 3, device=runtime.device)
(o.sum() + dynamic_conv(x, w).sum()).backward()
assert "from kernels_from_math.flex_attention" in flex_attention.source(mods.activation(torch.tanh))
print(flex_attention.__module__, q.grad.isfinite().all().item(), "kernels" in sys.modules)
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77", reason="builds without a download")
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "source" / name)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    python("-m", "pip", "wheel", *options, "./source", cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_alias_is_the_same_source(tmp_path):
    code = """
import kernels_from_math.flex_attention as a, kernels.flex_attention as b, kernels_from_math.common.operator as c
from kernels_from_math.flex_attention import mods
import kernels, kernels_from_math, pickle, sys
assert kernels is kernels_from_math and a is b and c is sys.modules["kernels.common.operator"] and mods is b.mods
assert b.__spec__.name == b.__name__ == "kernels.flex_attention"
assert pickle.loads(pickle.dumps(b.flex_attention)) is a.flex_attention
print("same")
"""
    assert python("-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT)) == "same"


def test_the_wheel_holds_one_name_only(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {n: archive.read(n).decode() for n in names if n.endswith(".py")}
    assert {n.split("/")[0] for n in names} == {"kernels_from_math", f"{wheel.name.split('-py3')[0]}.dist-info"}
    stubs = {n for n in names if n.endswith(".pyi")}
    assert stubs == {f"kernels_from_math/{p.parent.name}/__init__.pyi" for p in ROOT.glob("kernels/*/__init__.pyi")} != set()
    tables = {n for n in names if n.endswith("configs.json")}
    assert tables == {f"kernels_from_math/{p.parent.name}/configs.json" for p in ROOT.glob("kernels/*/configs.json")}
    assert "kernels_from_math/py.typed" in names and set(texts) >= {
        f"kernels_from_math/{p.relative_to(ROOT / 'kernels')}" for p in ROOT.glob("kernels/**/*.py")
    }
    for name, text in texts.items():
        lines = [line.strip() for line in text.splitlines()]
        assert not [line for line in lines if line.startswith(("import kernels.", "from kernels.", "from kernels "))], name
        assert "import kernels\n" not in text, name


def test_the_wheel_is_used_by_its_name(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    said = python("-c", USE, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"), KERNELS_CACHE_DIR=str(tmp_path / "cache"))
    assert said == "kernels_from_math.flex_attention.operator True False"


TRANSFORMERS = """
from kernels_from_math.flex_attention import flex_attention
import torch, transformers
from transformers.masking_utils import flex_attention_mask

def attention(module, q, k, v, mask, scaling=None, **rest):
    return flex_attention(q, k, v, block_mask=mask, scale=scaling, enable_gqa=True).transpose(1, 2).contiguous(), None

transformers.AttentionInterface.register("ours", attention)
transformers.AttentionMaskInterface.register("ours", lambda *a, **k: flex_attention_mask(*a, **k))
sizes = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
ids = torch.arange(2, 12)[None]
with torch.no_grad(), torch.compiler.set_stance("force_eager"):
    outs = [model.set_attn_implementation(way) or model(ids).logits for way in ("eager", "ours")]
print(torch.allclose(*outs, atol=1e-5))
"""


@pytest.mark.slow
def test_beside_the_other_distribution(wheel, tmp_path):
    """Hugging Face's ``kernels``, and transformers, which looks for it: ours comes and goes and leaves both as they are.
    Reaches PyPI."""
    folder = tmp_path / "environment"
    python("-m", "venv", str(folder), cwd=tmp_path)
    executable = str(folder / "bin" / "python")
    site = Path(python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path, executable=executable))
    own = {"cwd": tmp_path, "executable": executable, "KERNELS_CACHE_DIR": str(tmp_path / "cache")}
    theirs = """
import kernels, importlib.metadata
from transformers.integrations import hub_kernels
from transformers.utils import is_kernels_available
print(importlib.metadata.version("kernels"), hub_kernels.__name__, is_kernels_available(), kernels.get_kernel.__name__)
"""
    python("-m", "pip", "install", "--quiet", "kernels", "transformers", **own)
    (site / "torch.pth").write_text(sysconfig.get_path("purelib"))  # torch and Triton of this environment
    found = python("-c", theirs, **own)
    assert found.endswith(" get_kernel")
    python("-m", "pip", "install", "--quiet", "--no-deps", str(wheel), **own)
    both = USE + "import kernels\nprint(kernels.get_kernel.__module__.split('.')[0])"
    assert python("-c", both, **own) == "kernels_from_math.flex_attention.operator True False\nkernels"
    assert python("-c", TRANSFORMERS, **own).splitlines()[-1] == "True"
    assert python("-c", theirs, **own) == found
    python("-m", "pip", "uninstall", "--quiet", "--yes", "kernels-from-math", **own)
    assert python("-c", theirs, **own) == found


@pytest.mark.slow
def test_the_courses_environment_has_both_names(tmp_path):
    folder = tmp_path / "environment"
    python("-m", "venv", str(folder), cwd=tmp_path)
    executable = str(folder / "bin" / "python")
    (tmp_path / "source").mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "source" / name)
    site = Path(python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path, executable=executable))
    python("-m", "pip", "install", "--quiet", "--no-deps", "-e", "./source", cwd=tmp_path, executable=executable)
    (site / "zz_torch.pth").write_text(sysconfig.get_path("purelib"))
    code = "import kernels, kernels_from_math.lab as b, kernels.lab as a; print(a is b, kernels.__file__)"
    said = python("-c", code, cwd=tmp_path, executable=executable)
    assert said == f"True {tmp_path / 'source' / 'kernels' / '__init__.py'}"
