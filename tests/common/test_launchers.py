"""A kernel's launcher is asked once for what stays the same, and gets at every start what Triton's own would hand on."""

import types

import pytest
import torch

from kernels.common import launchers
from kernels.common.descriptors import Descriptors

pytestmark = pytest.mark.skipif(not launchers.KNOWN, reason="another version of Triton: its launcher is called as it is")


class described:
    """What a kernel is given for TMA."""

    def __init__(self, x):
        self.base, self.shape, self.strides, self.block_shape = x, list(x.shape), list(x.stride()), [4, 8]


@pytest.fixture
def compiled(monkeypatch):
    """A compiled kernel of two descriptors, a tensor and a number, and lists of what was encoded and what was launched."""
    made, launched = [], []

    def encode(descriptor, metadata, base):
        made.append((descriptor.base.data_ptr(), metadata["name"]))
        return [(metadata["name"], descriptor.base.data_ptr()), *descriptor.shape, *descriptor.strides]

    monkeypatch.setattr(launchers, "make_tensordesc_arg", encode)
    utils = types.SimpleNamespace(launch=lambda *args: launched.append(args))
    monkeypatch.setattr(launchers.triton.runtime.driver, "_active", types.SimpleNamespace(utils=utils), raising=False)
    signature = {"a": "tensordesc<fp16[4, 8]>", "b": "tensordesc<fp16[4, 8]>", "c": "*fp16", "n": "i32"}
    metadata = types.SimpleNamespace(tensordesc_meta=[{"name": "first"}, {"name": "second"}])
    launcher = object.__new__(launchers.CudaLauncher)
    vars(launcher).update(
        gsan_enabled=False, global_scratch_size=0, profile_scratch_size=0, launch_cooperative_grid=False, launch_pdl=True,
        arg_annotations=["seen"], kernel_signature=b"OOi", launch=None,
    )  # fmt: skip
    src = types.SimpleNamespace(signature=signature)
    return types.SimpleNamespace(run=launcher, metadata=metadata, src=src, made=made, launched=launched)


def test_a_descriptor_is_encoded_once_for_each_address_and_use(compiled):
    start, maker = launchers.starter(compiled), Descriptors(described)
    x, y, c = torch.zeros(8, 8), torch.ones(8, 8), torch.zeros(3)

    def launched_with(first, second):
        start(5, 1, 1, 70, "function", "packed", None, None, None, (first, second, c, 3))
        return compiled.launched.pop()

    fields = [8, 8, 8, 1]
    for first, second in ((x, x), (x, x), (y, x)):
        got = launched_with(maker(first), maker(second))
        assert got[:15] == (5, 1, 1, 70, "function", False, True, "packed", None, None, None, None, None, ["seen"], b"OOi")
        here, there = ("first", first.data_ptr()), ("second", second.data_ptr())
        assert [*got[15]][:10] == [here, *fields, there, *fields] and got[15][10] is c and got[15][11] == 3
    assert compiled.made == [(x.data_ptr(), "first"), (x.data_ptr(), "second"), (y.data_ptr(), "first")]
    launched_with(described(x), maker(x))  # made by nobody who knows that others are alike
    launched_with(described(x), maker(x))
    assert compiled.made[3:] == [(x.data_ptr(), "first")] * 2
    other = Descriptors(lambda t: described(t.T))
    assert [*launched_with(other(x), maker(x))[15]][1:5] == [8, 8, 1, 8]


def test_addresses_are_forgotten_in_the_end(compiled, monkeypatch):
    monkeypatch.setattr(launchers, "MOST", 4)
    start, maker, kept = launchers.starter(compiled), Descriptors(described), [torch.zeros(8, 8) for _ in range(9)]
    for x in kept:
        start(1, 1, 1, 0, 0, 0, None, None, None, (maker(x), maker(x), x, 3))
    assert len(maker.encoded) <= 4


@pytest.mark.parametrize("asked", [{"gsan_enabled": True}, {"global_scratch_size": 8}, {"profile_scratch_size": 8}])
def test_a_launcher_with_more_to_ask_for_is_called_as_it_is(compiled, asked):
    assert launchers.starter(compiled) is not None
    vars(compiled.run).update(asked)
    assert launchers.starter(compiled) is None


def test_another_launcher_is_called_as_it_is(compiled):
    compiled.run = lambda *args: None
    assert launchers.starter(compiled) is None
