"""What a launcher launches is recorded on two draws and replayed on a third: numbers come from kernels, or from nowhere."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import check, runtime
from kernels.check import replay
from kernels.check.tensors import Fenced

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="replays are held to the interpreter's numbers")
M, N = 5, 7
EVERY = triton.cdiv(M * N, 16)


@triton.jit
def add(x_ptr, y_ptr, o_ptr, SIZE, c, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < SIZE, other=0).to(tl.float32)
    tl.store(o_ptr + i, x + c * tl.load(y_ptr + i, mask=i < SIZE, other=0).to(tl.float32), mask=i < SIZE)


@triton.jit
def unrolled(x: tl.constexpr, o_ptr):
    for i in range(x.shape[0]):
        tl.store(o_ptr + i, float(x[i]))


@triton.jit
def subtract(x_ptr, y_ptr, o_ptr, SIZE, c, BLOCK: tl.constexpr):
    add(x_ptr, y_ptr, o_ptr, SIZE, -c, BLOCK)


@triton.jit
def gather(tensors, o_ptr, SIZE, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(tensors[1] + i, mask=i < SIZE, other=0)
    tl.store(o_ptr + i, tl.load(tensors[0] + at, mask=i < SIZE, other=0), mask=i < SIZE)


@triton.jit
def twice(desc, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, 2 * desc.load([0]))


def launch(kernel, x, y, o, c=1.0, grid=(EVERY,)):
    kernel[grid](x, y, o, M * N, c, BLOCK=16)


def draw(seed):
    """x [M, N], y [N, M] and a mask [M, N] of one draw, and an output."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(M, N, generator=generator), torch.randn(N, M, generator=generator)
    return [x, y, torch.randn(M, N, generator=generator) > 0, torch.full((M * N,), 3.0)]


def replayed(launcher):
    """``(x, y, mask, what is stored)`` of the third draw."""
    first, second, third = map(draw, range(3))
    calls = first, second
    recording = replay.record(lambda number: launcher(*calls[number]), first, second, {3: "o"})
    assert torch.equal(first[0], draw(0)[0]) and torch.equal(first[3], draw(0)[3])  # no kernel ran
    replay.replay(recording, third)
    return third


def refused(launcher) -> str:
    with pytest.raises(replay.OnHost) as found:
        replayed(launcher)
    return found.value.args[0]


def by_stride(x, y, mask, o):
    launch(add, x, y.T.contiguous(), o)


def by_cast(x, y, mask, o):
    launch(add, x.double(), y.T.contiguous().half(), o)


def padded(x, y, mask, o):
    z = torch.zeros(48)
    z[: M * N] = y.T.reshape(-1)
    launch(add, x, z, o)


def of_booleans(x, y, mask, o):
    launch(add, x, mask.T.contiguous().T.to(torch.int8).contiguous(), o)


def joined(x, y, mask, o):
    both = torch.cat([y.T.reshape(-1), x.reshape(-1)])
    launch(add, both[M * N :], both[: M * N], o)


STORE = {}


def kept(x, y, mask, o):
    w = STORE.setdefault("w", torch.zeros(M * N))  # from call to call
    launch(add, x, w, w)
    launch(add, w, y.T.contiguous(), o)


def through_half(x, y, mask, o):
    z = torch.empty(M * N)
    launch(add, x, y.T.contiguous(), z)
    launch(add, z.half(), z.new_zeros(M * N), o)


@pytest.mark.parametrize(
    ("launcher", "want"),
    (
        (by_stride, lambda x, y, mask: x + y.T),
        (by_cast, lambda x, y, mask: x + y.T.half()),
        (padded, lambda x, y, mask: x + y.T),
        (of_booleans, lambda x, y, mask: x + mask),
        (joined, lambda x, y, mask: x + y.T),
        (kept, lambda x, y, mask: x + y.T),
        (through_half, lambda x, y, mask: (x + y.T).half().float()),
    ),
    ids=lambda value: value.__name__,
)
def test_copies_are_made_anew(launcher, want):
    x, y, mask, o = replayed(launcher)
    torch.testing.assert_close(o, want(x, y, mask).reshape(-1))


def test_tables_and_zeros_stay_and_what_nobody_filled_is_nan():
    order = torch.arange(M * N - 1, -1, -1)
    x, _, _, o = replayed(lambda x, y, mask, o: gather[EVERY,]((x, order), o, M * N, BLOCK=16))
    assert torch.equal(o, x.reshape(-1).flip(0))
    _, _, _, o = replayed(lambda x, y, mask, o: launch(add, x, torch.empty(M * N), o))
    assert o.isnan().all()


def test_descriptors():
    def launcher(x, y, mask, o):
        twice[1,](TensorDescriptor.from_tensor(x.reshape(-1), [32]), o, BLOCK=32)

    x, _, _, o = replayed(launcher)
    assert torch.equal(o[:32], 2 * x.reshape(-1)[:32])


BETWEEN = (draw(0)[0][0, 0] + draw(1)[0][0, 0]) / 2  # of two draws, so that a decision differs


def in_place(x, y, mask, o):
    launch(add, x.mul_(2), y.T.contiguous(), o)


def counted(x, y, mask, o):
    for _ in range(1 + int(x[0, 0] > BETWEEN)):
        launch(add, x, y.T.contiguous(), o)


def sized(x, y, mask, o):
    launch(add, x, y.T.contiguous(), o, grid=(1 + int(x.abs().sum().item()),))


def chosen(x, y, mask, o):
    launch(add if x[0, 0] > BETWEEN else subtract, x, y.T.contiguous(), o)


def afterwards(x, y, mask, o):
    launch(add, x, y.T.contiguous(), o)
    o += 1


def read_back(x, y, mask, o):
    z = torch.empty(M * N)
    launch(add, x, y.T.contiguous(), z)
    launch(add, 2 * z, z, o)


def test_what_a_kernel_left_elsewhere_may_be_copied_at_the_end():
    def launcher(x, y, mask, o):
        z = torch.empty(M * N)
        launch(add, x, y.T.contiguous(), z)
        o.copy_(z.view(M, N).T.reshape(-1))

    x, y, _, o = replayed(launcher)
    assert torch.equal(o, (x + y.T).T.reshape(-1))


@pytest.mark.parametrize(
    ("launcher", "says"),
    (
        (lambda x, y, mask, o: launch(add, x + y.T, y, o), "x_ptr of add holds what the host computed from values"),
        (in_place, "x_ptr of add holds what the host computed from values"),
        (lambda x, y, mask, o: launch(add, x, y.T.contiguous(), o, x.sum().item()), "c of add is "),
        (counted, "launch"),
        (sized, "the grid of add is "),
        (chosen, "is launched on one draw of the values"),
        (afterwards, "o is written by the launcher, after its last launch"),
        (lambda x, y, mask, o: o.copy_((x + y.T).reshape(-1)), replay.NO_KERNEL),
        (read_back, "x_ptr of add holds what the host computed from values"),
        (lambda x, y, mask, o: unrolled[(1,)](x[0], o), "x is a tensor, and a tl.constexpr"),
        (lambda x, y, mask, o: launch(add, x.sort(1).values, y, o), "x_ptr of add holds what the host computed"),
        (lambda x, y, mask, o: launch(add, x, mask.cumsum(1), o), "y_ptr of add holds what the host computed"),
    ),
)
def test_what_the_host_computes_is_refused_by_name(launcher, says):
    assert says in refused(launcher)


def test_an_answer_of_pytorchs_that_a_kernel_copies_earns_nothing(capsys):
    """For exercises 01, 03 and 05 alike: full marks at home and in class before launches were replayed."""

    @triton.jit
    def copy(a_ptr, o_ptr, N, sam, san, som, son, BLOCK: tl.constexpr):
        for begin in range(0, N, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            a = tl.load(a_ptr + tl.program_id(0) * sam + i * san, mask=i < N, other=0)
            tl.store(o_ptr + tl.program_id(0) * som + i * son, a, mask=i < N)

    def row_softmax(x, out, entropy, BLOCK_N=None):
        p = torch.softmax(x.double(), 1).nan_to_num(0.0)
        copy[(len(x),)](p.to(out.dtype), out, x.shape[1], *p.stride(), *out.stride(), BLOCK=64)
        copy[(1,)](torch.special.entr(p).sum(1)[None], entropy[None], len(x), 1, 1, 1, entropy.stride(0), BLOCK=64)

    assert check.row_softmax(row_softmax) == 0
    assert "a_ptr of copy holds what the host computed from values" in capsys.readouterr().out


def test_a_fenced_tensors_ends():
    x = Fenced("x", "MN", torch.zeros(3, 5), fence={"M": 2, "N": 4})
    down, along = x.view.stride()
    places = torch.tensor([-along, 5 * along, 3 * down, -down, 3 * down + 5 * along]).numpy()
    assert x.beyond(places) == ([("N", "before"), ("N", "after"), ("M", "after"), ("M", "before"), ("", "")], False)
    assert x.beyond(places[:0] + 0) == ([], False)
    assert x.beyond(torch.tensor([1 << 40]).numpy())[1]
