"""Bad input: a ValueError that names the argument, what it got and what it needs, before anything is launched."""

from types import SimpleNamespace

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import (
    AuxRequest,
    causal_block_mask,
    create_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)
from kernels.flex_attention.mods import bind
from tests.flex_attention import cases


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=runtime.device)


Q, K = zeros(2, 4, 8, 16), zeros(2, 4, 9, 16)


def sliced():
    return create_block_mask(mods.causal, 1, 1, 64, 9, device=runtime.device, BLOCK_SIZE=8)[:, :, 0]


def mask(**changes):
    block_mask = causal_block_mask(8, 9)
    for name, value in changes.items():
        setattr(block_mask, name, value)
    return block_mask


def nested():
    return torch.nested.nested_tensor([zeros(2), zeros(3)])


CALLS = [
    (lambda: flex_attention(None, K, K), "query must be a tensor"),
    (lambda: flex_attention(Q[0], K, K), r"query has shape \[4, 8, 16\], needs \[B, Hq, M, D\]"),
    (lambda: flex_attention(Q.double(), K, K), "query has dtype float64, needs one of float32"),
    (lambda: flex_attention(Q, K.half(), K), "key has dtype float16, needs one of float32"),
    (lambda: flex_attention(Q, zeros(2, 4, 9, 15), K), r"key has shape \[2, 4, 9, 15\]"),
    (lambda: flex_attention(Q, K, zeros(2, 4, 8, 16)), r"value has shape \[2, 4, 8, 16\]"),
    (lambda: flex_attention(Q, K, K.to("meta")), "value is on meta, needs"),
    (lambda: flex_attention(Q, K[:0], K[:0]), "key has a batch of 0, needs 1 or 2"),
    (lambda: flex_attention(zeros(3, 4, 8, 16), K, K), "key has a batch of 2, needs 1 or 3"),
    (lambda: flex_attention(zeros(2, 4, 8, 0), zeros(2, 4, 9, 0), K), "head dimension of 0"),
    (lambda: flex_attention(Q, K[:, :2], K[:, :2]), "key has 2 heads, needs 4.*enable_gqa"),
    (lambda: flex_attention(Q, K[:, :3], K[:, :3], enable_gqa=True), "key has 3 heads, needs a divisor of 4"),
    (lambda: flex_attention(Q, K[:, :0], K[:, :0], enable_gqa=True), "key has 0 heads"),
    (lambda: flex_attention(Q, K, K, scale="1"), "scale is '1', needs a number"),
    (lambda: flex_attention(Q, K, K, 3), "score_mod is 3, needs a function"),
    (lambda: flex_attention(Q, K, K, mods.causal), "score_mod must take score, b, h, q_idx, kv_idx"),
    (
        lambda: flex_attention(Q, K, K, block_mask=mods.causal),
        r"block_mask is the function causal, needs a BlockMask or None: create_block_mask\(causal, B, H, M, N\) makes one",
    ),
    (lambda: flex_attention(Q, K, K, None, lambda *_: True), r"the function <lambda>, .*: create_block_mask\(mask_mod, B"),
    (lambda: flex_attention(Q, K, K, mask()), "^score_mod is a BlockMask, needs a function or None: write block_mask="),
    (lambda: flex_attention(Q, K, K, K), r"^score_mod is a tensor \[2, 4, 9, 16\], needs a function or None$"),
    (lambda: flex_attention(Q, K, K, None, K > 0), r"^block_mask is a tensor \[2, 4, 9, 16\], needs a BlockMask"),
    (lambda: flex_attention(Q, K, K, block_mask=mask(mask_mod=K)), r"^block_mask.mask_mod is a tensor \[2, 4, 9, 16\]"),
    (lambda: flex_attention(Q, K, K, block_mask=causal_block_mask(8)), "made for 8 queries and 8 keys, needs 8 and 9"),
    (lambda: flex_attention(Q, K, K, block_mask=sliced()), "block_mask was sliced and lost its mask_mod"),
    (lambda: flex_attention(Q, K, K, block_mask=mask(kv_num_blocks=zeros(3, 1, 1))), r"has shape \[3, 1, 1\].* B = 2"),
    (lambda: flex_attention(Q, K, K, block_mask=mask(kv_indices=zeros(1, 2, 1, 1))), r"kv_indices .* Hq = 4"),
    (
        lambda: flex_attention(Q, K, K, block_mask=mask(full_kv_num_blocks=zeros(1, 1, 0))),
        "0 blocks of queries, needs 1",
    ),
    (lambda: flex_attention(Q, K, K, block_mask=causal_block_mask(8, 9, device="meta")), "block_mask is on meta"),
    (lambda: flex_attention(Q, K, K, mods.head_scale(zeros(4).to("meta"))), "captures a tensor .* on meta, needs"),
    (lambda: flex_attention(Q, K, K, mods.head_scale(zeros(4).to_sparse())), "captures a tensor of layout torch.sparse_coo"),
    (lambda: flex_attention(Q, K, K, mods.head_scale(nested())), "captures a nested tensor, needs"),
    (lambda: flex_attention(Q, K, K, lambda s, b, h, m, n: s * 1j), "returns torch.complex64, needs a real number"),
    (lambda: flex_attention(Q, K, K, kernel_options=[("BLOCK_M", 16)]), r"kernel_options is \[.*, needs a dict"),
    (lambda: causal_block_mask(-1), "M is -1, needs a whole number of tokens"),
    (lambda: causal_block_mask(8, 2.5), "N is 2.5, needs a whole number of tokens"),
    (lambda: causal_block_mask(8, BLOCK_SIZE=0), "BLOCK_SIZE is 0, needs a whole number of at least 1"),
    (lambda: causal_block_mask(8, BLOCK_SIZE=(16,)), r"BLOCK_SIZE is \(16,\), needs a whole number .* or \(queries, keys\)"),
    (lambda: sliding_window_block_mask(None, 8), "window is None, needs a number"),
    (lambda: sliding_window_block_mask(True, 8), "window is True, needs a number"),
    (lambda: sliding_window_block_mask(2, "8"), "M is '8', needs a whole number"),
    (lambda: document_block_mask([0, 0, 1]), "ids must be a tensor .*got list"),
    (lambda: document_block_mask(zeros(8)), "ids has dtype float32, needs one of int32"),
    (lambda: document_block_mask(zeros(1, 1, 8).int()), r"ids has shape \[1, 1, 8\]"),
    (lambda: document_block_mask(zeros(8).int(), BLOCK_SIZE="16"), "BLOCK_SIZE is '16', needs"),
    (lambda: flex_attention(Q, K, K, mods.head_scale(zeros(3))), "score_mod indexes .* size 3 with h, needs 4"),
    (lambda: flex_attention(Q, K, K, mods.relative_bias(zeros(4, 9, 8))), "size 8 with kv_idx, needs 9"),
    (
        lambda: flex_attention(Q, K, K, block_mask=mask(mask_mod=mods.document(zeros(8, dtype=torch.int64)))),
        "block_mask.mask_mod indexes .* size 8 with kv_idx",
    ),
    (
        lambda: flex_attention(Q, K, K, kernel_options={"BLOCK_K": 16}),
        "kernel_options has 'BLOCK_K', knows BLOCK_M, BLOCK_N",
    ),
    (lambda: flex_attention(Q, K, K, kernel_options={"prescale_qk": True}), "kernel_options has 'prescale_qk'"),
    (lambda: flex_attention(Q, K, K, kernel_options={"WORKSPACE": -1}), "'WORKSPACE'.* is -1, needs a number of bytes"),
    (lambda: flex_attention(Q, K, K, kernel_options={"fwd_BLOCK_M": True}), "'fwd_BLOCK_M'.* is True, needs a power"),
    (
        lambda: flex_attention(Q, K, K, kernel_options={"BLOCK_M": 24}),
        "'BLOCK_M'.* is 24, needs a power of two",
    ),
    (lambda: flex_attention(Q, K, K, kernel_options={"bwd_BLOCK_N": 8}), "'bwd_BLOCK_N'.* is 8"),
    (lambda: flex_attention(Q, K, K, kernel_options={"num_warps": 3}), "'num_warps'.* is 3"),
    (lambda: flex_attention(Q, K, K, kernel_options={"num_stages": 0}), "'num_stages'.* is 0"),
    (
        lambda: flex_attention(Q, K, K, kernel_options={"DETERMINISTIC": 1}),
        "'DETERMINISTIC'.* is 1, needs True or False",
    ),
    (
        lambda: flex_attention(Q, K, K, return_lse=True, return_aux=AuxRequest()),
        "return_lse and return_aux are both given",
    ),
    (lambda: flex_attention(Q, K, K, lambda s, *at: s + torch.rand(())), r"draws random numbers \(aten.rand.default\)"),
    (lambda: flex_attention(Q, K, K, lambda s, *at: torch.dropout(s, 0.5, True)), "draws random numbers"),
    (lambda: flex_attention(Q, K, K, lambda s, *at: None), "returns None, needs a number for one query and one key"),
    (
        lambda: flex_attention(Q, K, K, block_mask=mask(mask_mod=lambda b, h, m, n: torch.where(m < n, -torch.inf, 0.0))),
        "returns torch.float32, needs torch.bool",
    ),
    (lambda: flex_attention(Q, K, K, mods.head_scale(torch._neg_view(zeros(4)))), r"captures a tensor \[4\].*resolve_neg"),
    (lambda: flex_attention(Q, K, K, return_aux=True), "return_aux is True, needs an AuxRequest"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=range(len(CALLS)))
def test_bad_input_is_refused_before_a_launch(call, message, monkeypatch):
    launched = []
    cases.replace_launch(monkeypatch, lambda launch: lambda *a, **k: launched.append(a))
    with pytest.raises(ValueError, match=message):
        call()
    assert not launched


def test_cpu_tensors_are_refused_where_kernels_are_compiled(as_if_compiled):
    q = torch.zeros(1, 1, 2, 3)
    with pytest.raises(ValueError, match="query is on cpu, needs a CUDA device.*TRITON_INTERPRET=1"):
        flex_attention(q, q, q)


def test_a_captured_tensor_may_lie_on_the_current_gpu_by_either_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    there, elsewhere = (SimpleNamespace(device=torch.device("cuda", i), shape=(2,)) for i in (0, 1))
    check = bind._check_devices
    for device in (torch.device("cuda"), torch.device("cuda", 0)):
        check("score_mod", mods.causal, [there], device)
        with pytest.raises(ValueError, match="on cuda:1, needs cuda"):
            check("score_mod", mods.causal, [elsewhere], device)


def test_a_mask_in_a_mods_place_is_told_inside_torch_compile_too():
    for arguments, message in (((mask(),), "write block_mask= before"), ((None, mods.causal), "create_block_mask")):
        with pytest.raises(Exception, match=message):
            torch.compile(flex_attention, backend="eager", fullgraph=True)(Q, K, K, *arguments)
