"""What a mod is known by: numbers become arguments, modules and objects are told by what the code reads of them."""

import enum
import functools
import sys
import threading
import typing

import pytest
import torch
from torch import nn

from kernels import runtime
from kernels.common.checks import same_device
from kernels.common.operator import clear_caches
from kernels.flex_attention import causal_block_mask, flex_attention, mods
from kernels.flex_attention.mods import bind, compiler
from kernels.flex_attention.mods.fingerprint import Fingerprint
from tests.flex_attention import cases

DEVICE = runtime.device


@pytest.fixture
def traced(monkeypatch):
    """A list that grows by one with every trace; nothing is known at the beginning."""
    seen, original = [], compiler.trace
    monkeypatch.setattr(compiler, "trace", lambda *a, **k: seen.append(a[0]) or original(*a, **k))
    monkeypatch.setattr(bind, "_compiled", bind.LRU(512))
    return seen


def qkv(M=20, N=20, grad=False):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, 16, device=DEVICE, requires_grad=grad) for n in (M, N, N)]


def agrees(mod, leaves=(), grad=False):
    q, k, v = qkv(grad=grad)
    ours = flex_attention(q, k, v, mod)
    want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mod)
    assert cases.relative_error(ours, want) < 1e-5
    if grad:
        leaves = (q, k, v, *leaves)
        grads = (torch.autograd.grad(o.square().sum(), leaves) for o in (ours, want))
        for a, b in zip(*grads, strict=True):
            assert cases.relative_error(a, b) < 2e-5


# Numbers.


def test_from_the_second_value_on_a_number_is_an_argument(traced):
    """As transformers has the offset of its cache in a closure: another number with every token."""

    def offset_by(offset, scale, slopes):
        def mod(score, b, h, q_idx, kv_idx):
            return score * scale - slopes[h] * ((q_idx + offset - kv_idx) % 7)

        return mod

    slopes = torch.tensor([0.5, 0.1], device=DEVICE, requires_grad=True)
    functions = set()
    for offset in (3, 1, 16, 5, 0, -2):
        mod = offset_by(offset, 0.5, slopes)
        agrees(mod, (slopes,), grad=True)
        functions.add(bind.bind(mod, "score_mod", DEVICE, True).compiled.text)
    assert len(traced) == len(functions) == 2
    agrees(offset_by(7, 0.25, slopes), (slopes,), grad=True)
    agrees(offset_by(8, 0.75, slopes), (slopes,), grad=True)
    assert len(traced) == 3  # both vary


def test_a_masks_number_is_an_argument(traced):
    q, k, v = qkv()
    for window in (3, 4, 1, 7):
        mask = causal_block_mask(20, BLOCK_SIZE=16)
        mask.full_kv_num_blocks = mask.full_kv_indices = None
        mask.kv_num_blocks = mask.kv_num_blocks.new_tensor([[[1, 2]]])
        mask.mask_mod = mods.sliding_window(window)
        i = torch.arange(20, device=DEVICE)
        allowed = (i[:, None] - i <= window) & (i[:, None] >= i)
        want = torch.softmax((q @ k.mT / 4).masked_fill(~allowed, -torch.inf), -1) @ v
        torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask), want, rtol=1e-4, atol=1e-5)
    assert len(traced) == 2


@pytest.mark.parametrize("place", ["default", "keyword", "partial", "global", "list", "nested", "attribute", "float"])
def test_numbers_wherever_they_are_found(place, traced, monkeypatch):
    def make(n):
        if place == "default":
            return lambda score, b, h, q, k, n=n: score + n * (q - k)
        if place == "keyword":
            return functools.partial(lambda score, b, h, q, k, *, n: score + n * (q - k), n=n)
        if place == "partial":
            return functools.partial(lambda n, score, b, h, q, k: score + n * (q - k), n)
        if place == "global":
            monkeypatch.setitem(globals(), "NUMBER", n)
            return lambda score, b, h, q, k: score + NUMBER * (q - k)
        if place == "list":
            both = [n, (n, 1)]
            return lambda score, b, h, q, k: score + both[1][0] * (q - k)
        if place == "nested":
            inner = lambda x: x * n  # noqa: E731
            return lambda score, b, h, q, k: score + inner(q - k)
        if place == "attribute":
            window = Window(n)
            return window.biased
        return lambda score, b, h, q, k: score * (n / 4) + torch.tanh(score / (n + 0.5))

    for n in (2, 3, 5, 1):
        agrees(make(n))
    assert len(traced) == 2


NUMBER = 0


class Window:
    def __init__(self, size):
        self.size, self.calls = size, 0

    def biased(self, score, b, h, q_idx, kv_idx):
        return score + self.size * self.distance(q_idx, kv_idx)

    def distance(self, q, k):
        return q - k


@pytest.mark.parametrize("kind", ["branch", "range", "isinstance", "clamp"])
def test_where_python_needs_the_number_it_is_compiled_for_each(kind, traced):
    def make(n):
        def mod(score, b, h, q_idx, kv_idx):
            if kind == "branch":
                return score * 2 if n > 2 else score
            if kind == "range":
                return sum((score + i for i in range(n)), score)
            if kind == "isinstance":
                return score + n if isinstance(n, int) else score
            return score.clamp(-n, 1.5)

        return mod

    for n in (1, 2, 3, 2):
        agrees(make(n))
    assert 3 <= len(traced) <= 4  # one vain attempt at most


def test_conditions_stay_constants(traced):
    for flag in (True, False, True):
        agrees(lambda score, b, h, q, k, flag=flag: torch.where((q >= k) & flag, score, score * 0.5))
    assert len(traced) == 2


@pytest.mark.parametrize("grad", [False, True])
def test_a_new_length_of_a_bias_is_no_new_code(grad):
    texts = set()
    for M, N in ((70, 90), (128, 96), (65, 257)):
        bias = torch.randn(2, M, N, device=DEVICE, requires_grad=grad)
        other = torch.randn(N, 2, device=DEVICE).T  # the strides of the transposed are constants
        mod = lambda score, b, h, q, k, bias=bias, other=other: score + bias[h, q - 1, k] * other[h, k]  # noqa: E731
        texts.add(bind.bind(mod, "score_mod", DEVICE, True).compiled.text)
        q, k, v = qkv(M, N)
        o = flex_attention(q, k, v, mod)
        i = torch.arange(M, device=DEVICE) - 1
        z = q @ k.mT / 4 + bias[:, i] * other[:, None]
        want = torch.softmax(z, -1) @ v
        torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-4)
        if grad:
            got, expected = (torch.autograd.grad(x.square().sum(), bias)[0] for x in (o, want))
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert len(texts) == 1


# Modules and objects.


class Attention(nn.Module):
    """Its mods are methods, as in many models; ``calls`` is something that they do not read."""

    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.1]))
        self.register_buffer("table", torch.randn(20))
        self.scale, self.use_table, self.calls, self.anything = 0.5, True, 0, object()
        self.gate = Gate()

    def mod(self, score, b, h, q_idx, kv_idx):
        score = self.gate(score) * self.scale - self.slopes[h] * (q_idx - kv_idx).abs()
        return score + self.table[kv_idx] if self.use_table else score

    def forward(self, q, k, v):
        self.calls += 1
        o = flex_attention(q, k, v, self.mod)
        return o, flex_attention(q, k, v, lambda *args: self.mod(*args))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.sign = nn.Parameter(torch.tensor(1.5)), 1.0

    def forward(self, score):
        return torch.sigmoid(score * self.weight) * self.sign


def test_a_module_is_known_again(traced):
    layer = Attention().to(DEVICE)
    q, k, v = qkv()
    for _ in range(3):
        first, second = layer(q, k, v)
        torch.testing.assert_close(first, second)
    assert len(traced) == 4  # two mods, each with its derivative when what it captures turns out to need it
    agrees(layer.mod, tuple(layer.parameters()), grad=True)


def test_what_changes_in_a_module_is_seen(traced):
    layer = Attention().to(DEVICE)
    agrees(layer.mod)
    changes = [
        lambda: setattr(layer, "use_table", False),
        lambda: setattr(layer, "scale", 0.25),
        lambda: setattr(layer.gate, "sign", -1.0),
        lambda: layer.gate.weight.data.mul_(2.0),
        lambda: setattr(layer, "slopes", nn.Parameter(torch.tensor([0.2, 0.3], device=DEVICE))),
        lambda: setattr(layer, "table", torch.randn(20, device=DEVICE)),
        lambda: setattr(layer, "gate", nn.Tanh()),
        lambda: layer.gate.register_forward_hook(lambda *_: _[-1] * 0.5),
        lambda: setattr(layer, "mod", lambda score, b, h, q, k: score * 3.0 * (q - k)),
    ]
    for change in changes:
        change()
        agrees(layer.mod)


def test_another_object_of_the_same_class_is_another_mod(traced):
    one, two = Attention().to(DEVICE), Attention().to(DEVICE)
    two.slopes.data.mul_(3.0)
    agrees(one.mod)
    agrees(two.mod)
    assert len(traced) == 2


def test_objects_configurations_and_properties():
    class Config:
        window = 3

        @property
        def doubled(self):
            return self.window * self.factor

    config = Config()
    config.factor = 2
    for _ in range(2):
        for change in ({}, {"factor": 3}, {"window": 5}):
            vars(config).update(change)
            agrees(lambda score, b, h, q, k: score + config.doubled * (q - k))
    Config.window = 7
    del config.window
    agrees(lambda score, b, h, q, k: score + config.doubled * (q - k))


def test_named_tuples_are_known_again(traced):
    class Config(typing.NamedTuple):
        window: int
        factor: float

        def scaled(self, x):
            return x * self.factor

    for config in (Config(3, 0.5), Config(3, 0.25), Config(3, 0.5)):
        agrees(lambda score, b, h, q, k, config=config: config.scaled(score) + config.window * (q - k))
    assert len(traced) == 2


def test_members_of_an_enum_are_known_again(traced):
    class Window(enum.IntEnum):
        NARROW, WIDE = 2, 5

    class Kind(enum.Enum):
        CAUSAL, FULL = "causal", "full"

    for _ in range(3):
        for window, kind in ((Window.NARROW, Kind.CAUSAL), (Window.WIDE, Kind.CAUSAL), (Window.WIDE, Kind.FULL)):

            def mod(score, b, h, q, k, window=window, kind=kind):
                near = score * window + Window.NARROW * (q - k)
                return torch.where(q >= k, near, score) if kind is Kind.CAUSAL else near

            agrees(mod)
    assert len(traced) == 3


def test_what_is_read_by_a_computed_name_is_traced_at_every_call():
    window = Window(2)
    name = "si" + "ze"
    for size in (2, 5):
        window.size = size
        mod = lambda score, b, h, q, k: score + getattr(window, name) * (q - k)  # noqa: E731
        assert not Fingerprint(mod).complete
        agrees(mod)


def test_torchs_modules_are_known_by_all_they_hold():
    linear = nn.Linear(3, 2)
    mod = lambda score, b, h, q, k: score * linear(torch.ones(3))[h]  # noqa: E731
    before = Fingerprint(mod)
    assert before.complete and [t is w for t, w in zip(before.tensors, linear.parameters(), strict=True)] == [
        True,
        True,
    ]
    linear.out_features = 5
    after = Fingerprint(mod)
    assert (after.structure, after.values) != (before.structure, before.values)


def test_a_fingerprint_is_quick():
    import timeit

    layer = Attention()
    assert (
        min(timeit.repeat(lambda: Fingerprint(layer.mod), number=20, repeat=5)) / 20 < 2e-3
    )  # a trace takes ten times that


def test_devices_are_checked_of_a_known_mod_too(traced, monkeypatch):
    """Of one type they may still be two, and one of them may have been written without its index."""
    slopes = torch.ones(2, device=DEVICE)
    mod = lambda score, b, h, q, k: score * slopes[h]  # noqa: E731
    bind.bind(mod, "score_mod", torch.device(DEVICE.type, 0))
    bind.bind(mod, "score_mod", torch.device(DEVICE.type))
    bind._latest.clear()  # where nothing at all has changed, devices have not either
    asked = []
    monkeypatch.setattr(bind, "same_device", lambda a, b: asked.append((a, b)))
    with pytest.raises(ValueError, match="captures a tensor .* needs"):
        bind.bind(mod, "score_mod", DEVICE)
    assert len(traced) == len(asked) == 1


def test_a_device_without_an_index_is_the_one_there_is():
    cuda, first, second, cpu = (torch.device(name) for name in ("cuda", "cuda:0", "cuda:1", "cpu"))
    assert same_device(cuda, first) and same_device(first, cuda) and same_device(second, second)
    assert not same_device(first, second) and not same_device(cuda, cpu)


# Caches.


def test_caches_are_bounded(monkeypatch):
    monkeypatch.setattr(bind, "_compiled", bind.LRU(3))
    for i in range(6):
        exec(f"def mod(score, b, h, q_idx, kv_idx):\n    return score * {i}.125", space := {})
        bind.bind(space["mod"], "score_mod", DEVICE)
    assert len(bind._compiled) <= 3
    assert compiler._loaded.cache_info().maxsize == 2048
    assert not any(name.startswith("kernels_generated") for name in sys.modules)  # which would keep them


def test_one_call_clears_what_is_known(monkeypatch):
    compiled, real = [], bind.compile_mod
    monkeypatch.setattr(bind, "compile_mod", lambda *args: (compiled.append(args), real(*args))[1])
    mod = mods.softcap(19.0)
    for known in (0, 1, 1):
        assert len(compiled) == known
        bind.bind(mod, "score_mod", DEVICE)
    clear_caches()
    bind.bind(mod, "score_mod", DEVICE)
    assert len(compiled) == 2


def test_threads_compile_a_mod_once(traced):
    bound = []
    mod = mods.softcap(13.0)
    threads = [
        threading.Thread(target=lambda: bound.append(bind.bind(mod, "score_mod", DEVICE, True))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one.compiled) for one in bound}) == 1 and len(bound) == 8 and len(traced) == 1
