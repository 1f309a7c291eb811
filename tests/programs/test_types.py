"""A user's program under mypy, strictly: what our functions give is known, and what they don't take is an error."""

from tests.programs.installed import program
from tools.kernel_environment import ROOT

api = program("mypy.api")

IMPORTS = """
from typing import assert_type

import torch
from torch import Tensor, nn

from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_update
from kernels.flex_attention import AuxOutput, AuxRequest, BlockMask, causal_block_mask, flex_attention, mods
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step

x = torch.randn(2, 8, 4, 16)
"""
RIGHT = """
class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.image = Conv2d(width, width, 3, padding="same", bias=False)
        self.mix = DynamicShortConvolution(width, 4, static_conv_init=nn.init.zeros_)
        self.slopes = nn.Parameter(torch.ones(8))

    def penalty(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score - self.slopes[h] * (q_idx - kv_idx)

    def forward(self, x: Tensor) -> Tensor:
        o = flex_attention(x, x, x, self.penalty, causal_block_mask(4), enable_gqa=True)
        o, lse = flex_attention(o, x, x, mods.softcap(30.0), return_lse=True, kernel_options={"BLOCK_M": 64})
        state, counts = recurrent_attention(o, x, x, g=lse, output_final_state=True)
        return dynamic_conv(state, state) + counts + recurrent_attention(x, x, x)[0]


assert_type(flex_attention(x, x, x), Tensor)
assert_type(flex_attention(x, x, x, return_aux=AuxRequest(lse=True)), tuple[Tensor, AuxOutput])
assert_type(flex_attention.explain(x, x, x, mods.causal_score), str)
assert_type(flex_attention.source(mods.alibi(8), mods.and_masks(mods.causal, mods.prefix(3))), str)
assert_type(causal_block_mask(4, BLOCK_SIZE=(16, 32), device="cpu"), BlockMask)
assert_type(dynamic_conv(x, x, activation="silu"), Tensor)
assert_type(dynamic_conv(x, x, output_final_state=True), tuple[Tensor, Tensor])
assert_type(dynamic_conv.explain(x, x), str)
assert_type(dynamic_conv_step(x, x, x), Tensor)
assert_type(DynamicShortConvolution(8, 4).step(x, x), Tensor)
assert_type(causal_conv1d_update(x, x, x), Tensor)
assert_type(recurrent_attention(x, x, x, state_v_first=True), tuple[Tensor, None])
assert_type(recurrent_attention(x, x, x, output_final_state=bool(x.sum())), tuple[Tensor, Tensor | None])
assert_type(recurrent_attention.explain(x, x, x), str)
assert_type(recurrent_attention_step(x, x, x, x), Tensor)
assert_type(conv2d_wgrad(x, x, 3, 3, stride=(2, 1)), Tensor)
assert_type(conv2d_wgrad.explain(x, x, 3, 3), str)
assert_type(conv2d(x, x) + conv2d_bias_grad(x), Tensor)
"""
WRONG = [
    ("dynamic_conv(x)", "call-overload"),
    ('dynamic_conv(x, x, output_final_state="yes")', "call-overload"),
    ("a, b = flex_attention(x, x, x).shape, flex_attention(x, x, x)[0].lse", "attr-defined"),
    ("flex_attention(x, x, x, kernel_options=3)", "call-overload"),
    ("flex_attention(x, x, x, mods.softcap(x))", "arg-type"),
    ("mods.sliding_window(0.5)", "arg-type"),
    ("recurrent_attention(x, x, x)[1].sum()", "attr-defined"),
    ("recurrent_attention(x, x, x, mod='chunk')", "call-overload"),
    ("conv2d_wgrad(x, x, 3)", "call-arg"),
    ("DynamicShortConvolution('8', 4)", "arg-type"),
]


def mypy(tmp_path, text, monkeypatch):
    (tmp_path / "user.py").write_text(IMPORTS + text)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    options = ["--strict", "--no-error-summary", f"--cache-dir={ROOT / 'build' / 'mypy'}", "--follow-imports=silent"]
    out, problems, _ = api.run([*options, "user.py"])
    assert not problems
    return out.splitlines()


def test_a_users_program_is_right_and_its_mistakes_are_found(tmp_path, monkeypatch):
    """All in one run: mypy reads torch once."""
    first = (IMPORTS + RIGHT).count("\n") + 1
    found = mypy(tmp_path, RIGHT + "\n".join(line for line, _ in WRONG) + "\n", monkeypatch)
    for number, (line, code) in enumerate(WRONG, first):
        named = [text for text in found if text.startswith(f"user.py:{number}: error")]
        assert named and any(f"[{code}]" in text for text in named), f"{line}: {named}"
    assert [text for text in found if "error" in text and int(text.split(":")[1]) < first] == []


def test_nothing_of_the_public_surface_is_untyped(tmp_path, monkeypatch):
    rooms = "dynamic_conv", "recurrent_attention", "flex_attention", "conv_wgrad"
    names = [f"{room}.{name}" for room in rooms for name in program(f"kernels.{room}").__all__]
    lines = [f"import kernels.{room}" for room in rooms] + [f"reveal_type(kernels.{name})" for name in names]
    types = [line for line in mypy(tmp_path, "\n".join(lines), monkeypatch) if "Revealed type" in line]
    assert len(types) == len(names) and [line for line in types if line.endswith('"Any"')] == []
