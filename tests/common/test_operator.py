"""``register``: what PyTorch asks of an operator, of one whose forward and backward are plain arithmetic."""

import pytest
import torch
import torch._dynamo.testing
from torch.library import opcheck

from kernels import runtime
from kernels.common.operator import register

calls = []  # of the forward pass, by what it was given


def forward(x, w, captured, scale, more):
    calls.append(type(x))
    return x * w * scale + sum(captured), x.sum(-1) if more else x.new_empty(0)


def fake(x, w, captured, scale, more):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1] if more else 0)


def backward(dy, x, w, captured, scale, more, needs):
    if dy is None:
        dy = torch.zeros_like(x)
    grads = dy * w * scale, dy * x * scale, *(dy.clone() for _ in captured)
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)]


toy = register(
    "toy_of_the_tests(Tensor x, Tensor w, Tensor[] captured, float scale, bool more) -> (Tensor y, Tensor sums)",
    forward,
    fake,
    backward=backward,
    gradients=("x", "w", "captured"),
    saved=("x", "w", "captured"),
    constant=("sums",),
    public="toy",
)


TOY_BACKWARD = torch.ops.kernels_from_math.toy_of_the_tests_backward.default


def add(state, x):
    torch.add(state, x, out=state.detach())  # a kernel's write: autograd is told nothing by it
    return 2 * x


step = register(
    "toy_step_of_the_tests(Tensor(a!) state, Tensor x) -> Tensor y", add, lambda state, x: x.new_empty(x.shape)
)


def tensors(n=3):
    torch.manual_seed(0)
    return [torch.randn(n, 4, device=runtime.device, requires_grad=True) for _ in range(4)]


def call(x, w, a, b):
    return toy(x, w, [a, b], 2.0, False)[0]


def gradients(function, leaves):
    return torch.autograd.grad(function(*leaves).square().sum(), leaves)


def agrees(function, leaves):
    for got, want in zip(
        gradients(function, leaves), gradients(lambda x, w, a, b: x * w * 2 + a + b, leaves), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_it_is_differentiated_and_what_nobody_asked_for_stays_absent():
    agrees(call, tensors())
    x, w, a, b = tensors()
    assert toy(x, w, [a, b], 2.0, False)[1].numel() == 0 and not toy(x, w, [a, b], 2.0, True)[1].requires_grad
    assert torch.autograd.grad(call(x, w, a, b).sum(), [b])[0].equal(torch.ones_like(b))


def test_it_is_compiled_whole_and_once_for_all_lengths():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    for n in (3, 5, 9):
        agrees(compiled, tensors(n))
    assert counter.frame_count == 1


def test_torch_checks_it():
    x, w, a, b = tensors()
    for more in (True, False):
        opcheck(toy, (x, w, [a, b], 2.0, more))
    values = [t.detach() for t in (x, x, w, a, b)]
    opcheck(TOY_BACKWARD, (*values[:3], values[3:], 2.0, False, [True, False, True, True]))
    opcheck(step, (torch.zeros(3, 4, device=runtime.device), values[0]))


def test_modes_and_subclasses_see_an_operator():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    seen = []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Looks():
        agrees(call, tensors())
    assert seen.count(toy) == 1 and seen.count(TOY_BACKWARD) == 1
    with torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(3, 4, requires_grad=True) for _ in range(4)]
        assert [g.shape for g in gradients(call, fakes)] == [(3, 4)] * 4
    with FlopCounterMode(display=False):
        agrees(call, tensors())


def test_it_is_exported():
    class Module(torch.nn.Module):
        def forward(self, x, w, a, b):
            return call(x, w, a, b)

    leaves = tensors()
    exported = torch.export.export(Module(), tuple(leaves), dynamic_shapes=[{0: torch.export.Dim("n")}] * 4)
    torch.testing.assert_close(exported.module()(*tensors(7)), call(*tensors(7)))


def test_changes_in_place_are_noticed_of_captured_tensors_and_of_states():
    x, w, a, b = tensors()
    y = call(x, w, a, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    state = torch.ones(3, 4, device=runtime.device)
    product = (state * x).sum()  # saves the state
    step(state, x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    torch.testing.assert_close(state, 1 + x.detach())


def test_derivatives_that_are_not_there_are_refused():
    leaves = tensors()
    with pytest.raises(RuntimeError, match="toy has no second derivative.*kernels.toy.reference.toy_reference"):
        made = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
        sum(g.sum() for g in made).backward()
    with pytest.raises(RuntimeError, match="toy_step_of_the_tests is not differentiable"):
        step(torch.zeros(3, 4, device=runtime.device), leaves[0]).sum().backward()


def test_a_gradient_needs_a_shape():
    with pytest.raises(ValueError, match="need a fake_backward"):
        register("toy_without_shapes(Tensor x) -> Tensor y", forward, fake, backward=backward, gradients=("x",))
