"""Flex attention inside ``torch.compile``, ``torch.export`` and whatever else traces a program; as a registered operator."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from kernels import runtime
from kernels.flex_attention import (
    AuxRequest,
    causal_block_mask,
    create_block_mask,
    document_block_mask,
    flex_attention,
    graphs,
    mods,
    operator,
    sliding_window_block_mask,
)

DEVICE = runtime.device
BACKEND = "aot_eager" if runtime.interpreted else "inductor"


@pytest.fixture(autouse=True)
def a_new_dynamo():
    torch._dynamo.reset()


class Attention(torch.nn.Module):
    """Its mods capture a parameter, what is computed from one, an argument, numbers of its own and of a size."""

    def __init__(self, mask=None):
        super().__init__()
        self.slopes, self.means = torch.nn.Parameter(torch.rand(2)), torch.nn.Parameter(torch.rand(100, 3))
        self.cap, self.mask = 5.0, mask
        self.to(DEVICE)

    def forward(self, query, key, value, ids, block_mask=None):
        slopes, tokens = self.slopes.exp(), ids.shape[0]

        def score_mod(score, b, h, q_idx, kv_idx):
            same = ids[q_idx] == ids[kv_idx]
            likeness = torch.dot(self.means[q_idx], self.means[kv_idx])
            return self.cap * torch.tanh(score / self.cap) + slopes[h] * (q_idx - kv_idx) / tokens + same * likeness

        return flex_attention(query * 1.0, key, value, score_mod, block_mask or self.mask)


def inputs(tokens=40, D=16, requires_grad=True):
    torch.manual_seed(tokens)
    q, k, v = (torch.randn(1, 2, tokens, D, device=DEVICE, requires_grad=requires_grad) for _ in range(3))
    return q, k, v, torch.arange(tokens, device=DEVICE) // 15


def both(one, other, q, k, v, learned=()):
    """Two programs' results and gradients are the same bits."""
    results = []
    for program in (one, other):
        o = program()
        results.append((o, *torch.autograd.grad(o.square().sum(), (q, k, v, *learned))))
    assert all(map(torch.equal, *results)) if runtime.interpreted else torch.allclose(results[0][0], results[1][0])


@pytest.mark.parametrize("backend", [BACKEND, pytest.param("eager", marks=pytest.mark.thorough)])
def test_a_model_compiles_whole_and_once_for_all_lengths(backend):
    model = Attention()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for tokens in (40, 61, 90):  # the first, that for which it is compiled once more, and one that finds it compiled
        q, k, v, ids = inputs(tokens)
        mask = document_block_mask(ids, BLOCK_SIZE=16)
        learned = model.slopes, model.means
        both(lambda: model(q, k, v, ids, mask), lambda: compiled(q, k, v, ids, mask), q, k, v, learned)  # noqa: B023
    assert counter.frame_count <= 2  # the first length, then any


def test_heads_taken_out_of_rows_compile_for_all_lengths():
    """[B, T, H D] seen as [B, H, T, D], as every model makes its queries; and sizes without values can't be sorted."""
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, SCORES["softcap"]), backend="aot_eager", fullgraph=True)
    for tokens in (40, 52, 61):
        q, k, v = (t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in inputs(tokens)[:3])
        both(lambda: flex_attention(q, k, v, SCORES["softcap"]), lambda: compiled(q, k, v), q, k, v)  # noqa: B023


@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_call_that_dynamo_gives_up_on_is_made(mask):
    """Without fullgraph: dynamo runs what it can't record, and a mod may hold anything."""
    slopes = torch.rand(2, device=DEVICE, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        torch._dynamo.graph_break()
        return score + slopes[h] * (q_idx - kv_idx)

    q, k, v, _ = inputs()
    arguments = score_mod, MASKS[mask]() if mask else None, 0.3
    compiled = torch.compile(flex_attention, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(flex_attention, backend="aot_eager", fullgraph=True)(q, k, v, *arguments)
    both(lambda: flex_attention(q, k, v, *arguments), lambda: compiled(q, k, v, *arguments), q, k, v, (slopes,))
    _, aux = compiled(q, k, v, *arguments, return_aux=AuxRequest(lse=True, max_scores=True))
    _, want = flex_attention(q, k, v, *arguments, return_aux=AuxRequest(lse=True, max_scores=True))
    torch.testing.assert_close((aux.lse, aux.max_scores), (want.lse, want.max_scores))


MASKS = {
    "causal": lambda: causal_block_mask(40, BLOCK_SIZE=16, device=DEVICE),
    "window": lambda: sliding_window_block_mask(7, 40, BLOCK_SIZE=16, device=DEVICE),
    "torch's": lambda: create_block_mask(lambda b, h, m, n: m >= n, None, None, 40, 40, device=DEVICE, BLOCK_SIZE=16),
    "documents": lambda: document_block_mask(torch.arange(40, device=DEVICE) // 15, BLOCK_SIZE=16),
}
SCORES = {
    "softcap": mods.softcap(5.0),
    "alibi": mods.alibi(2),
    "nothing": lambda score, b, h, m, n: score,
    "a number": lambda score, b, h, m, n: 0.5,
    "pairs": lambda score, b, h, m, n: score + PAIRS[m // 20][0] * PAIRS[n // 20, 1],
}
PAIRS = torch.rand(2, 2, device=DEVICE)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", [*MASKS, *SCORES, None])
def test_the_function_itself_compiles(name):
    q, k, v, _ = inputs()
    arguments = SCORES.get(name), MASKS[name]() if name in MASKS else None
    compiled = torch.compile(flex_attention, backend=BACKEND, fullgraph=True)
    both(lambda: flex_attention(q, k, v, *arguments), lambda: compiled(q, k, v, *arguments), q, k, v)


def test_every_argument_and_result():
    q, k, v, _ = inputs()
    q = q.detach().transpose(1, 2).contiguous().transpose(1, 2)
    calls = [
        {"return_lse": True},
        {"return_aux": AuxRequest(lse=True, max_scores=True), "scale": 0.3},
        {"kernel_options": {"BLOCK_M": 16}},
    ]
    for call in calls:
        torch._dynamo.reset()
        got = torch.compile(flex_attention, backend=BACKEND, fullgraph=True)(q, k, v, mods.alibi(2), **call)
        flat, want = (torch.utils._pytree.tree_leaves(x) for x in (got, flex_attention(q, k, v, mods.alibi(2), **call)))
        assert len(flat) == len(want)
        for one, other in zip(flat, want, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()


def test_a_number_that_changes_every_call_is_compiled_twice():
    counter = CompileCounterWithBackend(BACKEND)

    @torch.compile(backend=counter, fullgraph=True)
    def decode(q, k, v, offset):
        def score_mod(score, b, h, q_idx, kv_idx):
            return torch.where(q_idx + offset >= kv_idx, score, -float("inf"))

        return flex_attention(q, k, v, score_mod)

    q, k, v, _ = inputs(requires_grad=False)
    whole = flex_attention(q, k, v, mods.causal_score)
    for i in range(20, 26):
        torch.testing.assert_close(decode(q[:, :, i : i + 1], k, v, i), whole[:, :, i : i + 1])
    assert counter.frame_count <= 2


def odd(score, b, h, q_idx, kv_idx):
    return score + torch.special.bessel_j0(score)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: (q, k[..., :8], v), r"key has shape \[1, 2, 40, 8\], needs"),
        (lambda q, k, v: (q, k[:, :1], v[:, :1]), "key has 1 heads, needs 2"),
        (lambda q, k, v: (q, k, v, None, causal_block_mask(41, BLOCK_SIZE=16, device=DEVICE)), "made for 41 queries"),
        (lambda q, k, v: (q, k, v, odd), r"return score \+ torch.special.bessel_j0\(score\)"),
        (lambda q, k, v: (q, k, v, lambda s, b, h, m, n: s + PAIRS[0, m]), "indexes a captured dimension of size 2"),
    ],
    ids=range(5),
)
def test_bad_input_is_refused_as_in_eager(call, message):
    arguments = call(*inputs(requires_grad=False)[:3])
    with pytest.raises(ValueError, match=message):
        flex_attention(*arguments)
    with pytest.raises(Exception, match=message):
        torch.compile(flex_attention, backend=BACKEND, fullgraph=True)(*arguments)


READS = {
    "query": lambda q, k: lambda s, b, h, m, n: s * q[b, h, m, 0] + q[b, h, m, 1],
    "key": lambda q, k: lambda s, b, h, m, n: s + k[b, h, n].pow(2).sum(),
    "a size in an index": lambda q, k: lambda s, b, h, m, n: s + TABLE[q.shape[2] - 1, n] + TABLE[:, m][k.size(2) - 2],
}
TABLE = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)


@pytest.mark.share(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", READS)
def test_a_mod_reads_the_query_or_the_key_itself(what, dynamic):
    def attend(q, k, v):
        return flex_attention(q, k, v, READS[what](q, k))

    compiled = torch.compile(attend, backend=BACKEND, fullgraph=True, dynamic=dynamic)
    for M in (20, 33):
        torch.manual_seed(M)
        qkv = [torch.randn(1, 2, M, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
        o, want = compiled(*qkv), attend(*qkv)
        torch.testing.assert_close(o, want)
        do = torch.randn_like(o)
        for got, expected in zip(torch.autograd.grad(o, qkv, do), torch.autograd.grad(want, qkv, do), strict=True):
            torch.testing.assert_close(got, expected)


def test_backward_inside_a_compiled_program_with_compiled_autograd():
    """The program is left for the call of backward, and a mod is traced where autograd's own compiler is on."""
    leaves = [torch.randn(1, 1, 20, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
    mod = lambda s, b, h, m, n: torch.tanh(s * 1.25)  # noqa: E731
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda q, k, v: flex_attention(q, k, v, mod).square().sum().backward(), backend=BACKEND)(*leaves)
    expected = torch.autograd.grad(flex_attention(*leaves, mod).square().sum(), leaves)
    for t, want in zip(leaves, expected, strict=True):
        torch.testing.assert_close(t.grad, want)


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.int64(3)])
def test_numbers_of_numpy(number):
    q, k, v, _ = inputs(requires_grad=False)
    made = type(number.item())
    given = [lambda s, b, h, m, n: s * made(number) + number.item(), lambda s, b, h, m, n: s * number]
    for mod in given:
        attend = lambda q, k, v, mod=mod: flex_attention(q, k, v, mod)  # noqa: E731
        compiled = torch.compile(attend, backend=BACKEND, fullgraph=True)
        torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_export(strict, mask):
    model, (q, k, v, ids) = Attention(mask and MASKS[mask]()), inputs(requires_grad=False)
    program = torch.export.export(model, (q, k, v, ids), strict=strict).module()
    torch.testing.assert_close(program(q, k, v, ids), model(q, k, v, ids))


@pytest.mark.parametrize("strict", [False, True])
def test_export_for_any_length(strict):
    model, tokens = Attention(), torch.export.Dim("tokens", min=20, max=4096)
    shapes = ({2: tokens}, {2: tokens}, {2: tokens}, {0: tokens})
    arguments = inputs(requires_grad=False)
    program = torch.export.export(model, arguments, strict=strict, dynamic_shapes=shapes).module()
    for length in (40, 57):
        arguments = inputs(length, requires_grad=False)
        torch.testing.assert_close(program(*arguments), model(*arguments))


def test_a_text_that_is_no_programs_is_refused():
    q, k, v, _ = inputs(requires_grad=False)
    with pytest.raises(ValueError, match="spec is '0123'..., needs what this version of flex_attention has written"):
        operator._attend(q, k, v, [], [], [], [], 1.0, False, "0123")


def test_the_registered_operator():
    q, k, v, _ = inputs()
    table = torch.rand(2, device=DEVICE, requires_grad=True)
    call = operator._arguments(q, k, v, mods.learned_alibi(table), MASKS["causal"](), None, False, None)
    *arguments, spec = call
    result = torch.library.opcheck(operator._attend, (q, k, v, *arguments, True, spec))
    assert set(result.values()) == {"SUCCESS"}


def test_a_captured_tensors_gradient_lies_in_memory_as_the_graph_was_told():
    """T5's bias of positions is a permuted view: buckets [M, N, H] looked up, then the heads first."""
    q, k, v, _ = inputs()
    bias = torch.rand(1, q.shape[2], k.shape[2], q.shape[1], device=DEVICE).permute(0, 3, 1, 2).requires_grad_()
    *arguments, spec = operator._arguments(q, k, v, lambda s, b, h, m, n: s + bias[0, h, m, n], None, None, False, None)
    o, lse, _ = operator._attend(q, k, v, *arguments, False, spec)
    (got,) = torch.autograd.grad(o.sum() + lse.sum(), bias)
    assert got.stride() == torch.empty_like(bias).stride() != got.contiguous().stride()
    result = torch.library.opcheck(operator._attend, (q, k, v, *arguments, False, spec))
    assert set(result.values()) == {"SUCCESS"}


def test_tensors_without_values():
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, n, 16, device=DEVICE, requires_grad=True) for n in (40, 60, 60))
        o, lse = flex_attention(q, k, v, mods.learned_alibi(torch.rand(2, device=DEVICE)), return_lse=True)
        assert o.shape == q.shape and lse.shape == (1, 2, 40)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_recorded_by_make_fx(mode):
    q, k, v, _ = inputs(requires_grad=False)
    for cap in (3.25, 3.5, 3.75):  # a number of the text, then an argument: traced anew in the recording
        program = make_fx(lambda q, k, v: flex_attention(q, k, v, mods.softcap(cap)), tracing_mode=mode)(q, k, v)  # noqa: B023
        calls = [node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        assert calls == [torch.ops.kernels_from_math.flex_attention.default]
        torch.testing.assert_close(program(q, k, v), flex_attention(q, k, v, mods.softcap(cap)))


@pytest.mark.share(3)
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoints(use_reentrant, compiled):
    model, (q, k, v, ids) = Attention(MASKS["causal"]()), inputs()
    program = torch.compile(model, backend=BACKEND) if compiled else model

    def run(saved):
        o = checkpoint(program, q, k, v, ids, use_reentrant=use_reentrant) if saved else model(q, k, v, ids)
        o.square().sum().backward()
        grads = [t.grad for t in (q, k, v, model.slopes, model.means)]
        for t in (q, k, v, *model.parameters()):
            t.grad = None
        return grads

    for one, other in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(one, other)


def test_hooks_see_what_is_saved():
    """What the kernels read again, the mask's lists too."""
    seen = []
    q, k, v, _ = inputs()
    table, mask = torch.rand(2, device=DEVICE, requires_grad=True), MASKS["documents"]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t.clone())[1], lambda t: t):
        o = flex_attention(q, k, v, mods.learned_alibi(table), mask)
    addresses = {t.data_ptr() for t in seen}
    assert {t.data_ptr() for t in (q, k, v, table, mask.kv_indices, mask.q_indices)} <= addresses
    torch.autograd.grad(o.sum(), (q, table))


def test_copies_of_a_model():
    model, (q, k, v, ids) = Attention(MASKS["window"]()), inputs()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        both(lambda: model(q, k, v, ids), lambda: other(q, k, v, ids), q, k, v)  # noqa: B023


def _train(rank, file, queue):
    torch.manual_seed(0)
    store = torch.distributed.FileStore(file, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = Attention()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    q, k, v, ids = inputs(24 + 8 * rank)
    parallel(q, k, v, ids).square().sum().backward()
    queue.put((rank, [p.grad.tolist() for p in model.parameters()]))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not runtime.interpreted, reason="two processes of gloo, on the CPU")
def test_gradients_meet_across_processes(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    processes = [context.Process(target=_train, args=(rank, str(tmp_path / "store"), queue)) for rank in range(2)]
    for process in processes:
        process.start()
    got = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert got[0] == got[1]
    torch.manual_seed(0)
    model = Attention()
    sum(model(*inputs(24 + 8 * rank)).square().sum() for rank in range(2)).backward()
    for grad, p in zip(got[0], model.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(grad), p.grad / 2)


def test_a_compiled_program_that_is_gone_is_forgotten():
    gc.collect()  # earlier tests' programs, which would go in between
    before = len(graphs._recipes)
    q, k, v, _ = inputs(requires_grad=False)
    torch.compile(flex_attention, backend="eager", fullgraph=True)(q, k, v, lambda s, *_: s * 0.375)
    assert len(graphs._recipes) == before + 1
    torch._dynamo.reset()
    gc.collect()
    assert len(graphs._recipes) <= before
