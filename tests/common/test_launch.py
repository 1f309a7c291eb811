"""Launches, runs that are cut and found, tables that fall back in order."""

import importlib
import importlib.util
import json
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import harness
from kernels import runtime
from kernels.common import configs
from kernels.common import operator as launch_module
from kernels.common.checks import same_device
from kernels.common.operator import launch
from kernels.common.sequences import count_runs, sequence_of_runs
from kernels.flex_attention.mods import compiler


@triton.jit
def _square_kernel(x_ptr, y_ptr, n, stride_x, stride_y, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * stride_x, mask=offs < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + offs * stride_y, (x * x).to(y_ptr.dtype.element_ty), mask=offs < n)


def test_nothing_is_said_of_numbers_that_nobody_may_ever_store():
    """Memory that nobody has written holds anything; what a lane makes of it, a GPU does not tell either."""
    x, y = torch.full((4,), 3e38, device=runtime.device), torch.zeros(4, device=runtime.device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(_square_kernel, (1,), x, y, 4, 1, 1, BLOCK=4)
    assert y.isinf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bfloat16_rounds_as_torch_does_and_strides_are_kept(dtype):
    buffer = torch.full((64,), 7.0, dtype=dtype, device=runtime.device)
    x = torch.linspace(0.1, 3.0, 20, device=runtime.device).to(dtype)[::2]
    y = buffer[3:33:3]
    launch(_square_kernel, (2,), x, y, 10, x.stride(0), y.stride(0), BLOCK=8)
    assert torch.equal(y, (x.float() ** 2).to(dtype))
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[3:33:3] = False
    assert (buffer.cpu()[untouched] == 7).all()


def test_an_expanded_bfloat16_input():
    x = torch.tensor([1.5], dtype=torch.bfloat16, device=runtime.device).expand(10)
    y = torch.empty(10, dtype=torch.bfloat16, device=runtime.device)
    launch(_square_kernel, (2,), x, y, 10, x.stride(0), 1, BLOCK=8)
    assert (y == 2.25).all()
    launch(_square_kernel, (2,), y, y, 10, 1, 1, BLOCK=8)
    assert (y == 5.0625).all()


def test_threads_launch_at_the_same_time():
    """In the interpreter one after the other: it keeps the program's number in a place of its own."""
    x = torch.arange(256.0, device=runtime.device)
    outputs = [torch.zeros(256, device=runtime.device) for _ in range(24)]

    def work(y):
        launch(_square_kernel, (32,), x, y, 256, 1, 1, BLOCK=8)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, outputs))  # raises what a thread has raised
    assert all(torch.equal(y, x * x) for y in outputs)


@pytest.mark.skipif(not runtime.interpreted, reason="a forked process cannot use the GPU")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("held", [launch_module._one_at_a_time, compiler.lock])
def test_a_process_forked_while_a_thread_computes(held):
    """A lock that is held by a thread, which the new process doesn't have, would be held there for ever."""
    taken, x = threading.Event(), torch.arange(8.0)

    def busy():
        with held:
            taken.set()
            time.sleep(0.2)

    thread = threading.Thread(target=busy)
    thread.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # what ends it where it waits
        try:
            with held:
                launch(_square_kernel, (1,), x, x, 8, 1, 1, BLOCK=8)
        finally:
            os._exit(0 if torch.equal(x, torch.arange(8.0) ** 2) else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_an_empty_grid_runs_nothing():
    y = torch.full((4,), 7.0, device=runtime.device)
    launch(_square_kernel, (0,), y, y, 0, 1, 1, BLOCK=8)
    assert (y == 7).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8), RUN=st.integers(1, 17))
def test_runs_cover_every_token_of_every_sequence_once(lengths, RUN):
    """The rule the kernels use, spelled out: place r of sequence n holds tokens (r - (cu[n] // RUN + n)) * RUN onward."""
    cu = torch.tensor([0, *lengths], device=runtime.device).cumsum(0)
    N, T = len(lengths), sum(lengths)
    runs = count_runs(N, N, T, RUN)
    sequence = sequence_of_runs(cu, runs, RUN)
    assert runs == T // RUN + N == len(sequence)
    covered = []
    for r, n in enumerate(sequence.tolist()):
        begin, end = cu[n].item(), cu[n + 1].item()
        first = (r - (begin // RUN + n)) * RUN
        assert first >= 0
        covered += range(begin + first, min(begin + first + RUN, end))
    assert covered == list(range(T))


def test_unpacked_runs_are_counted_without_a_list():
    assert count_runs(None, 3, 10, 4) == 9 and sequence_of_runs(None, 9, 4) is None
    assert count_runs(None, 3, 0, 4) == 0
    assert count_runs(0, 0, 0, 4) == 0


def test_configurations_fall_back_from_gpu_and_class(monkeypatch):
    table = {
        "any GPU": {
            "a": {"default": {"X": 1}, "W4": {"X": 2}},
            "b": {"default": {"X": 3}},
            "c": {"default": {"X": 5}, "W4": {"X": 6}},
        },
        "GPU Z": {"a": {"W4": {"X": 4}}, "c": {"default": {"X": 7}}},
        "sm_1": {"b": {"W4": {"X": 8}}, "c": {"W4": {"X": 9}}},
        "sm_2": "sm_3",
        "sm_3": {"b": {"default": {"X": 10}}},
    }
    monkeypatch.setattr(configs, "_table", lambda package: table)
    gpus = [("GPU Z", "sm_1"), ("GPU Y", "sm_2"), ("GPU X", "sm_1")]
    monkeypatch.setattr(configs, "_gpu", gpus.__getitem__)

    class Compiled:
        interpreted = False

    monkeypatch.setattr(configs, "runtime", Compiled)
    here, there, kin = (torch.device("cuda", i) for i in range(3))
    pick = lambda kernel, key, device: configs.configuration("package", kernel, key, device)["X"]  # noqa: E731
    assert [pick("a", "W4", here), pick("a", "W9", here), pick("b", "W9", here)] == [4, 1, 3]
    assert [pick("a", "W4", there), pick("a", "W9", there)] == [2, 1]
    # a GPU's own default says more than another's class, and its architecture's more than any GPU's
    assert [pick("c", "W4", gpu) for gpu in (here, there, kin)] == [7, 6, 9]
    assert [pick("b", "W4", gpu) for gpu in (here, there, kin)] == [8, 10, 8]
    monkeypatch.setitem(configs._classes, "package", {"a": {"W4"}})
    assert pick("a", "W4", here) == 4
    with pytest.raises(ValueError, match="'W9' is no shape class that kernels.package declares for 'a'"):
        pick("a", "W9", here)


def test_the_committed_table_is_as_the_tuner_writes_it():
    path = configs.Path(configs.__file__).parent.parent / "dynamic_conv" / "configs.json"
    table = json.loads(path.read_text())
    assert harness.table_text(table) == path.read_text()
    assert {"interpreter", "any GPU", "NVIDIA H200"} <= table.keys()


def test_devices_are_the_same_with_and_without_an_index(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    gpu, first, second = (torch.device(name) for name in ("cuda", "cuda:0", "cuda:1"))
    assert same_device(gpu, second) and same_device(second, gpu) and same_device(gpu, gpu)
    assert not same_device(gpu, first) and not same_device(first, second)
    assert same_device(torch.device("cpu"), torch.device("cpu", 0)) and not same_device(gpu, torch.device("cpu"))


def test_a_launch_on_cpu_tensors_is_left_to_whoever_executes_it_where_kernels_are_compiled(monkeypatch):
    class Compiled:
        interpreted = False

    monkeypatch.setattr(launch_module, "runtime", Compiled)
    monkeypatch.setattr(configs, "runtime", Compiled)
    launched = []

    class Kernel:  # the model of Gluon takes a kernel's launches like this
        def __getitem__(self, grid):
            return lambda *args, **meta: launched.append((grid, args, meta))

    x = torch.zeros(3)
    launch(Kernel(), (2,), x, 3, BLOCK=8)
    assert launched == [((2,), (x, 3), {"BLOCK": 8})]
    here = configs.configuration("dynamic_conv", "forward", "W4 16-bit", x.device)  # and no GPU is asked for its name
    assert here == configs.of_gpu("interpreter", "dynamic_conv", "forward", "W4 16-bit")


PACKAGES = sorted(path.parent.name for path in configs.Path(configs.__file__).parent.parent.glob("*/configs.json"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_key_of_a_table_is_a_shape_class_that_its_room_declares(package):
    importlib.import_module(f"kernels.{package}")
    classes, table = configs.declared(package), configs._table(package)
    assert classes, f"kernels.{package} declares no shape classes"
    for gpu, kernels in table.items():
        if isinstance(kernels, str):
            assert isinstance(table[kernels], dict), f"{gpu} stands for {kernels}, which has no table"
            continue
        for kernel, keys in kernels.items():
            unknown = set(keys) - classes[kernel] - {"default"}
            assert not unknown, f"{gpu}, {kernel}: {unknown} are no shape classes"
    assert all("default" in table["any GPU"][kernel] for kernel in classes)


@pytest.mark.parametrize("operator", ["dynamic_conv", "recurrent_attention", "flex_attention", "conv_wgrad"])
def test_what_was_tuned_on_one_gpu_reaches_its_whole_architecture(operator):
    """An H100 once took flex attention's table of "any GPU", and a quarter of an H200's speed."""
    table = configs._table(operator)
    aliases = {name: gpu for name, gpu in table.items() if isinstance(gpu, str)}
    named = {name for name in table if name not in aliases and name not in ("interpreter", "any GPU")}
    assert "NVIDIA H200" in named and aliases["sm_90"] == "NVIDIA H200"
    for gpu in named:
        architectures = [name for name, target in aliases.items() if target == gpu]
        assert len(architectures) == 1, f"{gpu} has lines of its own: an alias gives them to its architecture"
        for kernel, lines in table[gpu].items():
            for key in lines:
                own = configs.of_gpu((gpu, architectures[0]), operator, kernel, key)
                assert configs.of_gpu(("another GPU of it", architectures[0]), operator, kernel, key) == own
