"""What a compiled or exported program needs of its mods travels in it: to other processes, and past any number of others."""

import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import (
    causal_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    operator,
    sliding_window_block_mask,
    specs,
)
from kernels.flex_attention.mods import bind

DEVICE = runtime.device
IDS = torch.arange(40, device=DEVICE) // 15


class Attention(torch.nn.Module):
    """``make(self)`` gives its score mod."""

    def __init__(self, make=None, mask=None):
        super().__init__()
        self.make, self.mask = make, mask
        self.slopes, self.cap = torch.nn.Parameter(torch.linspace(0.1, 0.9, 2)), 5.0
        self.to(DEVICE)

    def forward(self, q, k, v):
        return flex_attention(q, k, v, self.make and self.make(self), self.mask, return_lse=True)


def everything(model):
    """What is recorded in other ways than by an operator's name: methods, slices, constants, numbers, look-ups."""
    table = torch.tensor([[0.5, float("-inf")], [0.25, 1.0]], device=DEVICE)

    def score_mod(score, b, h, q_idx, kv_idx):
        tilted = torch.nn.functional.gelu(model.cap * score.tanh()) + model.slopes.exp()[h].clamp(min=-1.5e300)
        far = (q_idx - kv_idx).abs().to(torch.float32) ** 0.5 / q_idx.new_ones(()).mul(7)
        seen = torch.where((q_idx >= kv_idx) | (b != 0), tilted - far, float("-inf"))
        return seen + table[h][0] * torch.tensor([2.0, 3.0], device=DEVICE)[..., 1]

    return score_mod


MODELS = {
    "no mod": Attention(),
    "softcap": Attention(lambda model: mods.softcap(model.cap)),
    "a parameter": Attention(lambda model: mods.learned_alibi(model.slopes)),
    "everything": Attention(everything),
    "a mask": Attention(None, causal_block_mask(40, BLOCK_SIZE=16)),
    "documents": Attention(lambda model: mods.learned_alibi(model.slopes), document_block_mask(IDS, BLOCK_SIZE=16)),
}


def qkv(requires_grad=False):
    torch.manual_seed(0)
    return [torch.randn(1, 2, 40, 16, device=DEVICE, requires_grad=requires_grad) for _ in range(3)]


ELSEWHERE = """
import sys, torch
import kernels.flex_attention
from torch.utils._pytree import tree_leaves
for file in sys.argv[1:]:
    program, inputs = torch.export.load(file + ".pt2").module(), torch.load(file + ".in")
    inputs = [t.requires_grad_() for t in inputs]
    results = list(program(*inputs))
    results += torch.autograd.grad(results[0].square().sum() + results[1].sum(), inputs)
    torch.save(results, file + ".out")
"""


@pytest.mark.share(2)
@pytest.mark.parametrize("strict", [False, True])
def test_exported_here_and_run_elsewhere(strict, tmp_path):
    """One process for all of them: it has seen no mod at all."""
    files = []
    for name, model in MODELS.items():
        files.append(str(tmp_path / name))
        torch.export.save(torch.export.export(model, tuple(qkv()), strict=strict), files[-1] + ".pt2")
        torch.save(qkv(), files[-1] + ".in")
    subprocess.run([sys.executable, "-c", ELSEWHERE, *files], check=True)
    for file, model in zip(files, MODELS.values(), strict=True):
        inputs = qkv(True)
        o, lse = model(*inputs)
        want = o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), inputs)
        for one, other in zip(torch.load(file + ".out"), want, strict=True):
            torch.testing.assert_close(one, other, msg=lambda text, file=file: f"{file}: {text}")


def nothing_is_known():
    """As in a process that has seen no mod; where tables are bounded, as behind ever so many others."""
    bind._compiled.clear()
    clear_caches()


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_program_outlives_what_is_known_of_its_mods(name):
    model = MODELS[name]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for program in (model, compiled, compiled):
        inputs = qkv(True)
        o, lse = program(*inputs)
        nothing_is_known()
        results.append((o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), inputs)))
        nothing_is_known()
    for one in results[1:]:
        torch.testing.assert_close(one, results[0])


def test_five_thousand_other_mods(monkeypatch):
    torch._dynamo.reset()
    model, inputs = MODELS["a parameter"], qkv(True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    o, lse = compiled(*inputs)
    for i in range(5000):
        specs.recorded("", None, (), (), None, (), {"num_stages": i})
    want = model(*inputs)
    torch.testing.assert_close(compiled(*inputs), want)
    for one, other in zip(*(torch.autograd.grad(x.sum(), inputs) for x in (o, want[0])), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_a_call_that_is_recorded_with_values_outlives_it_too(name):
    """``make_fx`` records the call itself, whose mods have been compiled."""
    model = MODELS[name]
    program = make_fx(lambda *inputs: model(*inputs))(*qkv())
    nothing_is_known()
    torch.testing.assert_close(program(*qkv()), model(*qkv()))


def test_all_that_a_called_mod_is_stands_in_its_text():
    """Forward and backward from the text alone, with numbers as arguments, torch's own parts and sums for gradients."""
    q, k, v = qkv(True)
    table = torch.rand(2, 79, device=DEVICE, requires_grad=True)

    def made(offset):
        return lambda s, b, h, m, n: s * table.exp()[h, m - n + 39] + torch.where(m >= n, offset, -offset)

    for offset in (0.5, 1.5, 2.5):  # from the second on it is an argument
        mask = sliding_window_block_mask(int(8 * offset), 40, BLOCK_SIZE=16)
        o = flex_attention(q, k, v, made(offset), mask)
        *arguments, spec = operator._arguments(q, k, v, made(offset), mask, None, False, None)
        nothing_is_known()
        got = operator._attend(q, k, v, *arguments, False, spec)[0]
        results = [(x, *torch.autograd.grad(x.square().sum(), (q, k, v, table))) for x in (o, got)]
        assert all(map(torch.equal, *results)) if runtime.interpreted else torch.allclose(o, got)


def test_what_no_other_process_could_find_is_refused_by_name():
    @torch.compiler.allow_in_graph
    def mine(x):
        return x * 2

    attend = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, lambda s, *at: mine(s)), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="a mod uses .*mine, needs what another process can import by its name"):
        attend(*qkv())


def test_schemas_take_nothing_that_a_process_keeps():
    """Strings are words of the public functions' own; flex attention's spec is the one that is read."""
    words = {"activation", "mode", "backend", "padding_mode", "spec"}
    for name in dir(torch.ops.kernels_from_math):
        packet = getattr(torch.ops.kernels_from_math, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            strings = {a.name for a in packet.default._schema.arguments if "str" in str(a.type)}
            assert strings <= words, name
