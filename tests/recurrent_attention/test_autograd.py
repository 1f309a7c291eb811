"""Custom operators: torch's own checks, torch.compile without a graph break, autocast, CUDA graphs, several GPUs."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime
from kernels.recurrent_attention import operator, recurrent_attention, recurrent_attention_step
from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.recurrent_attention import cases
from tests.tensors import capture

MODES = ["recurrent", "chunk"]
BOTH = pytest.mark.parametrize("mode", MODES)
GATES = {"recurrent": cases.GATES, "chunk": ("g", "g_gamma", "gk")}


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device=runtime.device, dtype=dtype).requires_grad_(grad)


class Seen(TorchDispatchMode):
    """The arguments that one of torch's operators is called with."""

    def __init__(self, op):
        super().__init__()
        self.op, self.calls = op, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is self.op:
            self.calls.append(args)
        return function(*args, **(kwargs or {}))


def calls(op, function):
    """The arguments with which ``function`` calls ``op``."""
    with Seen(op) as seen:
        function()
    assert seen.calls
    return seen.calls


@BOTH
@pytest.mark.parametrize("packed", [False, True])
def test_opcheck(mode, packed):
    """Both operators, with as few arguments as possible and, but for the checks that run them ten times, with every one."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    checks += () if packed else ("test_aot_dispatch_dynamic",)
    if packed:
        leaves, packing = cases.problem(
            1, None, 2, 1, 4, 3, gates=GATES[mode], initial=True, cu_seqlens=[0, 1, 1, 3], dtype=torch.bfloat16
        )
    else:
        leaves, packing = cases.problem(2, 3, 1, 1, 4, 3)
        leaves["v"] = leaves["v"].detach()

    def work():
        out = recurrent_attention(**leaves, **packing, output_final_state=packed, mode=mode)
        sum(o.sum() for o in out if o is not None).backward()

    forward = operator._attend if mode == "recurrent" else operator._attend_in_chunks
    name = forward.name().split("::")[1]
    backward = getattr(torch.ops.kernels_from_math, f"{name}_backward").default
    for args in calls(backward, work):  # its own derivative is refused
        values = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        torch.library.opcheck(backward, values, test_utils=checks)
    for args in calls(forward, work):
        torch.library.opcheck(forward, args, test_utils=checks)


def test_opcheck_step():
    x, state = randn(2, 2, 4), randn(3, 2, 4, 4)
    slots = torch.tensor([2, 0], device=runtime.device)
    gates = {"g": randn(2, 2), "g_gamma": randn(2), "gk": x, "gv": x}
    step = operator._step
    (args,) = calls(step, lambda: recurrent_attention_step(x, x, x, state, **gates, slots=slots))
    torch.library.opcheck(step, args)


@BOTH
@pytest.mark.parametrize("packed", [False, True])
def test_compiles_without_a_graph_break(mode, packed):
    """One graph, forward and backward, with the same numbers as eager."""
    cu_seqlens = [0, 4, 9] if packed else None
    leaves, packing = cases.problem(1, 9, 2, 1, 4, 3, gates=GATES[mode], initial=True, cu_seqlens=cu_seqlens)

    def function(tensors):
        o, final = recurrent_attention(**tensors, **packing, output_final_state=True, mode=mode)
        return o.square().sum() + final.square().sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager" if runtime.interpreted else "inductor")
    results = [torch.autograd.grad(f(leaves), leaves.values()) for f in (function, compiled)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@BOTH
def test_one_compiled_function_serves_any_number_of_sequences(mode):
    """What was a constant when first compiled becomes a symbol, and is still compared with constants."""

    def function(q, state, cu_seqlens):
        return recurrent_attention(q, q, q, initial_state=state, cu_seqlens=cu_seqlens, mode=mode)[0]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    q = randn(1, 9, 2, 4)
    for lengths in ([0, 4, 9], [0, 3, 6, 9], [0, 1, 2, 3, 9]):
        arguments = q, randn(len(lengths) - 1, 2, 4, 4), torch.tensor(lengths, device=runtime.device)
        assert torch.equal(compiled(*arguments), function(*arguments))
    packed = torch.tensor([0, 4, 9], device=runtime.device)
    states = [randn(n, 2, 4, 4) for n in (1, 2)]
    closed = torch.compile(lambda state, cu: function(q, state, cu_seqlens=cu), fullgraph=True, backend="aot_eager")
    closed(states[0], None)
    assert torch.equal(closed(states[1], packed), function(q, states[1], packed))


def test_shapes_are_known_without_running():
    """Fake tensors: what torch.compile plans with."""
    with torch._subclasses.FakeTensorMode():
        new = lambda *shape, dtype=torch.bfloat16: torch.empty(shape, dtype=dtype, device=runtime.device)  # noqa: E731
        for mode, state in itertools.product(MODES, (False, True)):
            q, k, v = new(1, 70, 4, 20), new(1, 70, 2, 20), new(1, 70, 2, 12)
            cu_seqlens = new(4, dtype=torch.int32)
            torch.compiler.is_compiling, real = (lambda: True), torch.compiler.is_compiling  # no values to look at
            try:
                o, final = recurrent_attention(
                    q, k, v, gk=new(1, 70, 4, 20), cu_seqlens=cu_seqlens, output_final_state=state, mode=mode
                )
            finally:
                torch.compiler.is_compiling = real
            assert (o.shape, o.dtype) == ((1, 70, 4, 12), torch.bfloat16)
            assert final is None if not state else (final.shape, final.dtype) == ((3, 4, 20, 12), torch.float32)


@BOTH
def test_under_autocast(mode):
    """Layers in front give bfloat16, gates and state stay as they are, parameters get finite gradients of their own dtype."""
    project = torch.nn.Linear(8, 3 * 8).to(runtime.device)
    gate = torch.nn.Linear(8, 2).to(runtime.device)
    x = randn(2, 18, 8)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        q, k, v = project(x).unflatten(-1, (3, 2, 4)).unbind(2)
        o, final = recurrent_attention(
            q, k, v, g=torch.nn.functional.logsigmoid(gate(x).float()), output_final_state=True, mode=mode
        )
        assert (o.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        loss = o.float().square().sum() + final.sum()
    loss.backward()
    for parameter in (*project.parameters(), *gate.parameters()):
        assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()
        assert parameter.grad.count_nonzero() > 0


@BOTH
def test_only_the_gradients_that_are_needed(mode):
    """Any one argument and any one left out: the same numbers as when all are asked for, and none where none is needed."""
    leaves, _ = cases.problem(1, 4, 1, 1, 5, 4, gates=GATES[mode], initial=True)

    def gradients(needed):
        inputs = {name: leaf.detach().requires_grad_(name in needed) for name, leaf in leaves.items()}
        o, final = recurrent_attention(**inputs, output_final_state=True, mode=mode)
        (o.square().sum() + final.sum()).backward()
        return {name: x.grad for name, x in inputs.items()}

    everything = gradients(leaves)
    for needed in [{name} for name in leaves] + [leaves.keys() - {name} for name in leaves]:
        for name, grad in gradients(needed).items():
            if name not in needed:
                assert grad is None
            elif name not in ("g", "g_gamma"):  # with gk their sum may be taken in another order
                assert cases.same(grad, everything[name]), (needed, name)
            else:
                torch.testing.assert_close(grad, everything[name], msg=f"{needed} {name}")


@BOTH
def test_without_gradients_nothing_is_kept(mode):
    leaves, _ = cases.problem(1, 9, 2, 1, 5, 4, gates=GATES[mode])
    with torch.no_grad():
        quiet, _ = recurrent_attention(**leaves, mode=mode)
    assert quiet.grad_fn is None and torch.equal(quiet, recurrent_attention(**leaves, mode=mode)[0])


@BOTH
def test_a_second_derivative_is_refused_clearly(mode):
    x = randn(1, 3, 1, 4, grad=True)
    o, _ = recurrent_attention(x, x, x, mode=mode)
    (dx,) = torch.autograd.grad(o.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative.*recurrent_attention_reference"):
        dx.sum().backward()
    exact = x.detach().double().requires_grad_()
    o, _ = recurrent_attention_reference(exact, exact, exact)
    (dx,) = torch.autograd.grad(o.square().sum(), exact, create_graph=True)
    dx.sum().backward()
    assert exact.grad.count_nonzero() > 0


def test_explain_names_the_mode_and_the_reason():
    x = randn(1, 40, 1, 4)
    assert recurrent_attention.explain(x, x, x).startswith("chunk: matrix products")
    assert recurrent_attention.explain(x, x, x, mode="recurrent").startswith("recurrent: the caller asked for it\n")
    assert recurrent_attention.explain(x, x, x, gv=x).startswith("recurrent: only the recurrence has gates on values")
    short = x[:, :16]
    assert recurrent_attention.explain(short, short, short).startswith("recurrent: 16 tokens along time")
    assert recurrent_attention.explain(x[:, :17], x[:, :17], x[:, :17]).startswith("chunk")
    with pytest.raises(ValueError, match="mode is 'chunk', needs to be 'recurrent' with gv"):
        recurrent_attention.explain(x, x, x, gv=x, mode="chunk")


@pytest.mark.gpu
@BOTH
def test_captured_in_a_cuda_graph(mode):
    leaves, _ = cases.problem(2, 80, 2, 1, 32, 32, gates=GATES[mode], initial=True)
    state = randn(2, 2, 32, 32)
    cu = torch.tensor([0, 0, 80], device=runtime.device)

    def work():
        rest = {name: x[:1] for name, x in leaves.items() if name not in ("g_gamma", "initial_state")}
        o, final = recurrent_attention(**leaves, output_final_state=True, mode=mode)
        packed = recurrent_attention(**rest, cu_seqlens=cu, output_final_state=True, mode=mode)
        grads = torch.autograd.grad(o.sum() + final.sum(), leaves.values())
        q, k, v = (leaves[name].detach()[:, 0] for name in "qkv")
        return o, final, *packed, *grads, recurrent_attention_step(q, k, v, state)

    graph, outputs = capture(work)
    before = state.clone()
    with torch.no_grad():
        leaves["q"].copy_(torch.randn_like(leaves["q"]))
        state.copy_(before)
    graph.replay()
    captured = [x.clone() for x in outputs]
    state.copy_(before)
    for got, eager in zip(captured, work(), strict=True):
        assert torch.equal(got, eager)


@pytest.mark.gpu
@BOTH
def test_never_waits_for_the_gpu(mode):
    leaves, packing = cases.problem(1, None, 2, 1, 32, 32, gates=GATES[mode], initial=True, cu_seqlens=[0, 20, 80])
    q, k, v = (leaves[name].detach()[:, 0] for name in "qkv")
    state, slots = randn(3, 2, 32, 32), torch.ones(1, dtype=torch.int64, device=runtime.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        o, final = recurrent_attention(**leaves, **packing, output_final_state=True, mode=mode)
        (o.sum() + final.sum()).backward()
        recurrent_attention_step(q, k, v, state, slots=slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@BOTH
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_tensors_own_device(mode):
    leaves, _ = cases.problem(1, 40, 2, 2, 16, 16, gates=["g"])
    results = []
    for device in ("cuda:0", "cuda:1"):
        inputs = {name: x.detach().to(device).requires_grad_() for name, x in leaves.items()}
        o, _ = recurrent_attention(**inputs, mode=mode)
        results.append([o, *torch.autograd.grad(o.sum(), inputs.values())])
    for a, b in zip(*results, strict=True):
        assert b.device.index == 1 and torch.equal(a.cpu(), b.cpu())


@pytest.mark.gpu
@BOTH
def test_more_than_two_to_the_31_elements(mode):
    """T * H * V passes 2^31; a gate of -inf shortly before the end makes the last tokens a sequence of their own."""
    T, H, K, V, tail = 280_000, 128, 16, 64, 100
    q, k, v = (randn(1, T, H, size, dtype=torch.bfloat16, grad=True) for size in (K, K, V))
    g = torch.full((1, T, H), -0.05, device=runtime.device)
    g[:, T - tail] = -math.inf
    g.requires_grad_()
    o, _ = recurrent_attention(q, k, v, g=g, mode=mode)
    assert o.numel() > 2**31
    do = randn(1, 1, 1, V, dtype=torch.bfloat16).expand_as(o)
    grads = torch.autograd.grad(o, (q, k, v, g), do)
    exact = [x.detach()[:, T - tail :].double().requires_grad_() for x in (q, k, v, g)]
    want, _ = recurrent_attention_reference(*exact[:3], g=exact[3])
    wanted = torch.autograd.grad(want, exact, do[:, T - tail :].double())
    for got, expected in zip((o, *grads), (want, *wanted), strict=True):
        assert cases.relative_error(got[:, T - tail :], expected) <= 2 * cases.TOLERANCE[torch.bfloat16]
