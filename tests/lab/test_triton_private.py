"""The private names that the instruments rest on exist and mean what they meant: run on every supported Triton
version."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.lab import _triton_private


class Watcher:
    """An observer that changes nothing and keeps what it is shown."""

    def __init__(self):
        self.launches, self.operands, self.accesses, self.barriers = [], [], [], []

    def launch(self, kernel):
        return lambda grid: self.launches.append((kernel, tuple(grid)))

    def operand(self, name, tensor, address):
        assert tensor.data_ptr() == address
        self.operands.append(name)
        return address

    def access(self, kind, program, addresses, active, nbytes, frame):
        self.accesses.append((kind, program, addresses.tolist(), active.tolist(), nbytes, frame.f_code.co_name))
        return addresses, active

    def stored(self, values, allowed):
        assert values.shape == allowed.shape

    def barrier(self):
        self.barriers.append(len(self.accesses))

    def exponent(self, largest):
        raise AssertionError("no exponential is taken")

    def undefined(self, frame):
        raise AssertionError("a load has no other")


@triton.jit
def every_access(src, dst, counter, flag, pair, N: tl.constexpr):
    """One of each: masked and plain load and store, read-modify-write, compare-and-swap, a barrier, a tuple, a helper."""
    i = tl.arange(0, N)
    x = tl.load(src + i, mask=i < N - 1, other=0.0)
    tl.store(dst + i, helper(x, pair, i))
    tl.debug_barrier()
    tl.atomic_add(counter + i, x, mask=i > 0)
    tl.atomic_cas(flag, 0, 7)


@triton.jit
def helper(x, pair, i):
    return x + tl.load(pair[1] + i)


@triton.jit
def through_descriptors(desc, dst, M: tl.constexpr, N: tl.constexpr):
    out = tl.make_tensor_descriptor(dst, shape=[M, N], strides=[N, 1], block_shape=[4, 16])
    out.store([0, 0], desc.load([0, 0]))


def test_observing_changes_nothing_and_shows_every_access():
    src, dst, counter = torch.arange(4.0), torch.zeros(4), torch.zeros(4)
    flag, pair = torch.zeros(1, dtype=torch.int32), (torch.zeros(1), torch.full((4,), 10.0))
    watcher = Watcher()
    with _triton_private.observed(watcher):
        every_access[(1, 1)](src, dst, counter, flag, pair, N=4, num_warps=8)
    assert dst.tolist() == [10, 11, 12, 10] and counter.tolist() == [0, 1, 2, 0] and flag.item() == 7
    assert watcher.launches == [("every_access", (1, 1, 1))]
    assert watcher.operands == ["src", "dst", "counter", "flag", "pair[0]", "pair[1]"]
    first = [tensor.data_ptr() for tensor in (src, pair[1], dst, counter, flag)]
    kinds = ["load", "load", "store", "atomic", "atomic"]
    active = [[True] * 3 + [False], [True] * 4, [True] * 4, [False] + [True] * 3, [True]]
    frames = ["every_access", "helper", "every_access", "every_access", "every_access"]
    assert [a[0] for a in watcher.accesses] == kinds
    assert [a[2][0] for a in watcher.accesses] == first
    assert [a[3] for a in watcher.accesses] == active
    assert {(a[1], a[4]) for a in watcher.accesses} == {((0, 0, 0), 4)}
    assert [a[5] for a in watcher.accesses] == frames
    assert watcher.barriers == [3]


def test_a_compile_time_tensor_is_no_operand():
    @triton.jit
    def kernel(like: tl.constexpr, x):
        tl.store(x, 1.0)

    watcher = Watcher()
    with _triton_private.observed(watcher):
        kernel[(1,)](torch.zeros(3), torch.zeros(1))
    assert watcher.operands == ["x"]


def test_descriptors_are_seen_as_their_tensor():
    src, dst = torch.arange(64.0).reshape(4, 16), torch.zeros(4, 16)
    watcher = Watcher()
    with _triton_private.observed(watcher):
        through_descriptors[(1,)](
            triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(src, [4, 16]), dst, M=4, N=16
        )
    assert torch.equal(src, dst)
    assert watcher.operands == ["desc", "dst"]
    assert [a[0] for a in watcher.accesses] == ["load", "store"]


def test_what_is_not_allowed_does_not_happen():
    class Forbidding(Watcher):
        undefined = None

        def access(self, kind, program, addresses, active, nbytes, frame):
            return np.full_like(addresses, 8), np.zeros_like(active)  # address 8: touching it would kill the process

    src, dst, counter = torch.arange(4.0), torch.zeros(4), torch.zeros(4)
    flag, pair = torch.zeros(1, dtype=torch.int32), (torch.zeros(1), torch.full((4,), 10.0))
    with _triton_private.observed(Forbidding()):
        every_access[(1,)](src, dst, counter, flag, pair, N=4)
    assert not dst.any() and not counter.any() and not flag.any()


@triton.jit
def bare_loads(src, dst, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dst + i, tl.load(src + i, mask=i < n))
    tl.store(dst + N + i, tl.load(src + i, mask=i < n, other=tl.load(src)))


POISON = {
    torch.float32: float("nan"),
    torch.float16: float("nan"),
    torch.bfloat16: float("nan"),
    torch.float8_e5m2: float("nan"),
    torch.float8_e4m3fn: float("nan"),
    torch.int8: 93,
    torch.int16: 30_003,
    torch.int32: 1_000_003,
    torch.int64: 1_000_003,
    torch.bool: True,
}


@pytest.mark.parametrize("dtype", POISON, ids=str)
@pytest.mark.parametrize("poison", [float("nan"), 3e4, -3e4, 0.0])
def test_lanes_that_a_mask_leaves_out_hold_poison_where_there_is_no_other(dtype, poison):
    class Poisoning(Watcher):
        def undefined(self, frame):
            self.launches.append(frame.f_code.co_name)
            return poison

    watcher, src, dst = Poisoning(), torch.ones(4).to(dtype), torch.zeros(8).to(dtype)
    with _triton_private.observed(watcher):
        bare_loads[(1,)](src, dst, 3, N=4)
    held = dst.double()[3]
    assert dst.double()[:3].tolist() == [1, 1, 1] and dst.double()[4:].tolist() == [1, 1, 1, 1]
    if poison == 0:
        assert held == 0
    elif not dtype.is_floating_point:
        assert held == (-POISON[dtype] if poison < 0 and dtype is not torch.bool else POISON[dtype])
    elif poison != poison:
        assert held.isnan()
    else:
        assert poison * held > 0 and held.abs() > 100
    assert watcher.launches == ["bare_loads", ("bare_loads", (1, 1, 1))]
    with _triton_private.observed(watcher):
        bare_loads[(1,)](src, dst, 4, N=4)
    assert len(watcher.launches) == 3  # no lane was left out


@triton.jit
def single_loads(src, dst, n, BARE: tl.constexpr):
    """A number and a block of one lane, which a mask leaves out: in Triton's interpreter a single 0 is false."""
    i = tl.arange(0, 1)
    if BARE:
        tl.store(dst, tl.load(src, mask=n > 0))
        tl.store(dst + 1 + i, tl.load(src + i, mask=i < n))
    else:
        tl.store(dst, tl.load(src, mask=n > 0, other=0.0))
        tl.store(dst + 1 + i, tl.load(src + i, mask=i < n, other=0.0))


def test_an_other_of_one_element_that_is_0_is_one():
    class Poisoning(Watcher):
        def undefined(self, frame):
            self.launches.append("undefined")
            return 3e4

    for bare, held in ((False, [0, 0]), (True, [3e4, 3e4])):
        watcher, dst = Poisoning(), torch.ones(2)
        with _triton_private.observed(watcher):
            single_loads[(1,)](torch.ones(2), dst, 0, BARE=bare)
        assert dst.tolist() == held and watcher.launches.count("undefined") == 2 * bare


def test_everything_is_put_back_also_after_an_exception():
    from triton.runtime import interpreter

    def snapshot():
        methods = [getattr(interpreter.InterpreterBuilder, name) for name in _triton_private._WATCHED]
        return [interpreter.GridExecutor.__call__, interpreter._implicit_cvt, _triton_private.TritonSemantic.load, *methods]

    before = snapshot()
    with pytest.raises(KeyError), _triton_private.observed(Watcher()):
        assert snapshot() != before
        raise KeyError
    assert snapshot() == before


@triton.jit(do_not_specialize=["plain"], do_not_specialize_on_alignment=["loose"])
def many_kinds(
    pointer,
    shifted,
    loose,
    plain,
    number,
    one,
    wide,
    huge,
    flag,
    real,
    nothing,
    pair,
    desc,
    typed: tl.int64,
    C: tl.constexpr,
):
    pass


def test_specialisation_is_what_a_launch_derives():
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    x = torch.zeros(64, dtype=torch.bfloat16)
    desc = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(x.view(4, 16), [4, 16])
    values = [x, x[1:], x, 16, 48, 1, 7, 2**40, True, 0.5, None, (x, 3, 1), desc, 32, "constant"]
    arguments = dict(zip(many_kinds.arg_names, values, strict=True))
    jit = JITFunction(many_kinds.fn, **_triton_private._jit_options(many_kinds))
    binder = create_function_from_signature(jit.signature, jit.params, make_backend(GPUTarget("cuda", 90, 32)))
    bound, specialization, options = binder(**arguments)
    _, signature, constants, attributes = jit._pack_args(
        make_backend(GPUTarget("cuda", 90, 32)), options, bound, specialization, {}
    )
    signature_, constants_, attributes_ = _triton_private.specialize(many_kinds, arguments)
    assert signature_ == signature
    assert constants_ == constants
    drop_empty = lambda attrs: {path: attr for path, attr in attrs.items() if attr}
    assert drop_empty(attributes_) == drop_empty(attributes)
    assert signature_["pointer"] == "*bf16" and constants_[5,] == 1 and attributes_[0,] == BaseBackend.parse_attr("D")


def test_compiled_launches_can_be_seen_and_held_back():
    from triton.runtime.jit import JITFunction

    seen = []
    original = JITFunction.run
    jit = JITFunction(many_kinds.fn)
    with _triton_private.before_launches(lambda *launch: seen.append(launch) or False):
        jit[(3,)](1, 2, C=4)
    assert seen == [(jit, (3,), (1, 2), {"C": 4})]
    assert JITFunction.run is original
