"""The model of Gluon: the kernels of gluon_kernels.py give the right numbers, and nothing is found in them."""

import importlib
import random
import time

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels import gluon_model
from kernels.lab import compile_report
from tests.gluon_model import gluon_kernels
from tests.gluon_model.cases import ACC, descriptor, gemm, im2col, tensor_memory_gemm, wgrad


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
@pytest.mark.parametrize("name", ["gemm_single", "gemm_ring", "gemm_two_consumers"])
def test_products_are_right_and_nothing_is_found(name, schedule):
    call, check = gemm(getattr(gluon_kernels, name), M=100, N=72, K=136)
    result = call(schedule=schedule)
    assert result.ok and result.findings == [], result
    check()


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
@pytest.mark.parametrize("programs", [1, 2, 7])
def test_product_in_tensor_memory(schedule, programs):
    call, check = tensor_memory_gemm(M=256, N=192, K=200, programs=programs)
    result = call(schedule=schedule)
    assert result.ok, result
    check()


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_copies_in_and_out(schedule):
    x, y = torch.randn(50, 92), torch.full((50, 92), float("nan"))
    block = [32, 32]
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    result = gluon_model.run(
        gluon_kernels.copy_tiles, 2, descriptor(x, block), descriptor(y, block), 92, layout, schedule=schedule
    )
    assert result.ok, result
    torch.testing.assert_close(y, x + 1, rtol=0, atol=0)


@settings(max_examples=25, deadline=None)
@given(stages=st.integers(2, 5), steps=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_no_false_alarm_whatever_the_ring(stages, steps, seed):
    for kernel in (gluon_kernels.gemm_ring, gluon_kernels.gemm_single, gluon_kernels.gemm_two_consumers):
        call, check = gemm(kernel, M=32, N=32, K=32 * steps, stages=stages, block=(32, 32, 32))
        result = call(schedule="random", seed=seed)
        assert result.ok, result
        check()
    call, check = tensor_memory_gemm(M=64, N=128, K=32 * steps, programs=1, stages=stages, block=(64, 32, 32))
    result = call(schedule="random", seed=seed)
    assert result.ok, result
    check()


def test_a_ring_of_one_buffer_that_releases_one_step_late_is_a_deadlock():
    call, _ = gemm(gluon_kernels.gemm_ring, M=32, N=32, K=64, stages=1, block=(32, 32, 32))
    for schedule in gluon_model.SCHEDULES:
        result = call(schedule=schedule)
        assert not result.completed and [f.kind for f in result.findings] == ["deadlock"]
        assert "ring_loader" in result.findings[0].message and "empty[0]" in result.findings[0].message


def geometries(count: int):
    rng = random.Random(7)
    while count:
        N, Ci, Co = rng.randint(1, 3), 8 * rng.randint(1, 5), 8 * rng.randint(1, 5)
        H, W, R, S = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 4)
        stride, dilation = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 3), rng.randint(1, 2))
        padding = tuple(rng.randint(0, 3) for _ in range(4))
        P = (H + padding[0] + padding[1] - dilation[0] * (R - 1) - 1) // stride[0] + 1
        Q = (W + padding[2] + padding[3] - dilation[1] * (S - 1) - 1) // stride[1] + 1
        if P > 0 and Q > 0:
            count -= 1
            yield N, H, W, Ci, Co, R, S, stride, padding, dilation


@pytest.mark.parametrize("geometry", list(geometries(60)), ids=str)
def test_im2col_weight_gradient(geometry):
    call, check = wgrad(geometry, block=(32, 32, 16), stages=2)
    result = call(schedule="round-robin")
    assert result.ok, result
    check()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_schedules_agree_bit_for_bit(stages):
    geometry = (2, 7, 5, 24, 16, 3, 2, (2, 1), (1, 0, 2, 1), (1, 2))
    call, check = wgrad(geometry, block=(16, 32, 16), stages=stages)
    sweep = call(run=gluon_model.check_all_schedules)
    assert sweep.ok and sweep.same and len(sweep.results) == 5, sweep
    check()


def test_im2col_fills_with_the_padding_value_and_refuses_a_tiled_copy():
    x = torch.randn(1, 3, 3, 8, dtype=torch.float16)

    @gluon.jit
    def fetch(x_desc, out, IM2COL: gl.constexpr, layout: gl.constexpr):
        tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
        loaded = mbarrier.allocate_mbarrier()
        mbarrier.init(loaded, count=1)
        mbarrier.expect(loaded, x_desc.nbytes_per_cta)
        if IM2COL:
            tma.async_load_im2col(x_desc, [0, -1, -1, 0], [0, 0], loaded, tile)
        else:
            tma.async_load(x_desc, [0, 0, 0, 0], loaded, tile)
        mbarrier.wait(loaded, 0)
        rows = gl.arange(0, 16, gl.SliceLayout(1, layout))[:, None]
        gl.store(out + rows * 8 + gl.arange(0, 8, gl.SliceLayout(0, layout))[None, :], tile.load(layout))

    out = torch.zeros(16, 8, dtype=torch.float16)
    x_desc = im2col(x, [16, 8], (1, 1), (-1, -1), (0, 0), padding="nan")
    assert gluon_model.run(fetch, 1, x_desc, out, True, ACC).ok
    picture = torch.nn.functional.pad(x[0], (0, 0, 1, 1, 1, 1), value=float("nan"))[:4, :4].reshape(16, 8)
    torch.testing.assert_close(out, picture, equal_nan=True, rtol=0, atol=0)
    with pytest.raises(
        gluon_model.ModelError, match=r"(?s)test_model.py:\d+: tma.async_load\(x_desc.*not a descriptor"
    ):
        gluon_model.run(fetch, 1, x_desc, out, False, ACC)


@pytest.mark.parametrize("channel, begins", [(0, None), (4, 8), (8, None), (-2, 12)])
def test_copies_begin_at_multiples_of_16_bytes(channel, begins):
    """Elsewhere an H200 stops with an illegal instruction, in both modes (triton-lang/triton issue 7385)."""

    @gluon.jit
    def fetch(x_desc, channel, IM2COL: gl.constexpr):
        tile = gl.allocate_shared_memory(gl.float16, x_desc.block_type.shape, x_desc.layout)
        loaded = mbarrier.allocate_mbarrier()
        mbarrier.init(loaded, count=1)
        mbarrier.expect(loaded, x_desc.nbytes_per_cta)
        if IM2COL:
            tma.async_load_im2col(x_desc, [0, 0, 0, channel], [0, 0], loaded, tile)
        else:
            tma.async_load(x_desc, [0, channel], loaded, tile)
        mbarrier.wait(loaded, 0)

    x = torch.randn(1, 4, 4, 16).half()
    for desc, mode in ((im2col(x, [16, 8], (1, 1), (0, 0), (0, 0)), True), (descriptor(x.view(16, 16), [16, 8]), False)):
        if begins is None:
            assert gluon_model.run(fetch, 1, desc, channel, mode).ok
        else:
            with pytest.raises(gluon_model.ModelError, match=rf"begins {begins} bytes .*last coordinate is {channel}\)"):
                gluon_model.run(fetch, 1, desc, channel, mode)


def compile_arguments(name: str):
    a, b, c = torch.zeros(128, 256).bfloat16(), torch.zeros(256, 256).bfloat16(), torch.zeros(128, 256)
    wide = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    both = descriptor(a, [128, 64]), descriptor(b, [64, 128])
    if name == "copy_tiles":
        return descriptor(a, [32, 32]), descriptor(a, [32, 32]), 256, gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    if name == "gemm_single":
        return *both, c, 128, 256, 256, wide
    if name in ("gemm_ring", "gemm_two_consumers"):
        return *both, c, 128, 256, 256, wide, 3
    if name == "gemm_tensor_memory":
        return *both, descriptor(a, [128, 64]), 128, 256, 256, 3
    x = torch.zeros(2, 8, 8, 64).bfloat16()
    x_desc = im2col(x, [64, 64], (1, 1), (-1, -1), (-1, -1))
    return (
        descriptor(torch.zeros(128, 64).bfloat16(), [64, 64]),
        x_desc,
        c,
        128,
        8,
        8,
        64,
        64,
        3,
        3,
        1,
        2,
        1,
        1,
        1,
        1,
        ACC,
        3,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name, arch, product, loads",
    [
        ("copy_tiles", 90, None, "cp.async.bulk.tensor.2d"),
        ("gemm_single", 90, "HGMMA", "cp.async.bulk.tensor.2d"),
        ("gemm_ring", 90, "HGMMA", "cp.async.bulk.tensor.2d"),
        ("gemm_two_consumers", 90, "HGMMA", "cp.async.bulk.tensor.2d"),
        ("wgrad_tile", 90, "HGMMA", "cp.async.bulk.tensor.4d.shared::cta.global.im2col"),
        ("gemm_tensor_memory", 100, "UTCHMMA", "cp.async.bulk.tensor.2d"),
    ],
)
def test_the_kernels_compile_as_they_stand(name, arch, product, loads):
    report = compile_report(getattr(gluon_kernels, name), *compile_arguments(name), arch=arch)
    assert report.spill_bytes == 0 and loads in report.ptx
    assert set(report.instructions["matrix products"]) == ({product} if product else set())


def test_host_code_that_launches_runs_on_the_model_inside_executing():
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 32).bfloat16()
    c = torch.full((64, 32), float("nan"))
    with gluon_model.executing(schedule="greedy") as results:
        gluon_kernels.gemm_ring[(2, 1)](
            descriptor(a, [32, 32]), descriptor(b, [32, 32]), c, 64, 32, 64, ACC, 2, num_warps=4
        )
        gluon_kernels.gemm_ring[lambda meta: (2, meta["N"] // 32)](
            descriptor(a, [32, 32]), descriptor(b, [32, 32]), c, 64, 32, 64, ACC, STAGES=3, num_warps=8, maxnreg=168
        )
    assert [(r.kernel, r.grid, r.schedule, r.ok) for r in results] == [("gemm_ring", (2, 1), "greedy", True)] * 2
    torch.testing.assert_close(c, a.float() @ b.float())


def test_twenty_steps_of_a_large_tile_take_under_two_seconds():
    geometry = (2, 25, 26, 128, 128, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1))
    call, check = wgrad(geometry, block=(128, 128, 64), stages=4, taps=1)
    start = time.perf_counter()
    result = call(schedule="round-robin")
    seconds = time.perf_counter() - start
    assert result.ok and sum(e.kind == "issue" and e.what == "matrix product" for e in result.machines[0].events) >= 20
    check()
    assert seconds < 2, f"{seconds:.2f} s"


def test_older_tritons_are_told_what_is_needed(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.7.1")
    with pytest.raises(ImportError, match=r"needs Triton 3\.8 or newer .* this is 3\.7\.1"):
        importlib.reload(gluon_model)


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="@gluon.jit"):
        gluon_model.run(lambda: None, 1)
    with pytest.raises(ValueError, match="args do not fit gemm_ring"):
        gluon_model.run(gluon_kernels.gemm_ring, 1, 2)
    with pytest.raises(ValueError, match="grid is"):
        gluon_model.run(gluon_kernels.gemm_ring, (1, 2, 3, 4))
    with pytest.raises(ValueError, match="schedule is 'fifo'"):
        gemm(gluon_kernels.gemm_ring, M=32, N=32, K=32)[0](schedule="fifo")


# What kernels compute with.


@gluon.jit
def arithmetic(x, out, n, SIZE: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, SIZE, layout)
    v = gl.load(x + i, mask=i < n, other=-1.0)
    big = gl.to_tensor(2147483647) + 1
    quotient = -7 // gl.to_tensor(2)
    rest = (0 - n) % 4
    gl.store(out + i, gl.where(v > 0, v.to(gl.bfloat16).to(gl.float32), v * 2), mask=i < n)
    gl.store(out + SIZE, big.to(gl.float32))
    gl.store(out + SIZE + 1, quotient.to(gl.float32))
    gl.store(out + SIZE + 2, rest.to(gl.float32))
    gl.store(out + SIZE + 3, gl.sum(v, 0))
    gl.store(out + SIZE + 4, gl.maximum(gl.max(v, 0), gl.cdiv(n, 4)))
    gl.atomic_add(out + SIZE + 5, 1.5)


def test_numbers_wrap_truncate_and_round_as_on_the_gpu():
    x, out = torch.tensor([1.001, -2.0, 3.003, 0.5, 7.0]), torch.full((16,), 100.0)
    assert gluon_model.run(arithmetic, 2, x, out, 5, 8, gl.BlockedLayout([1], [32], [4], [0])).ok
    expected = torch.where(x > 0, x.bfloat16().float(), 2 * x)
    assert torch.equal(out[:5], expected) and bool((out[5:8] == 100).all())
    assert out[8:14].tolist() == [-(2.0**31), -3.0, -1.0, pytest.approx(x.sum().item() - 3), 7.0, 103.0]


def test_a_lane_outside_its_tensor_is_found_and_a_masked_one_is_not():
    x, out = torch.zeros(4), torch.zeros(16)
    result = gluon_model.run(arithmetic, 1, x, out, 5, 8, gl.BlockedLayout([1], [32], [4], [0]))
    (finding,) = result.findings
    assert finding.kind == "out of bounds" and "loads element 4 of x, which has 4" in finding.message
    assert "gl.load(x + i" in finding.place.text


def test_a_masked_lane_without_other_is_poison():
    @gluon.jit
    def careless(x, out, layout: gl.constexpr):
        i = gl.arange(0, 8, layout)
        gl.store(out + i, gl.load(x + i, mask=i < 5))

    out = torch.zeros(8)
    gluon_model.run(careless, 1, torch.ones(8), out, gl.BlockedLayout([1], [32], [4], [0]))
    assert out[:5].tolist() == [1.0] * 5 and bool(out[5:].isnan().all())


def test_what_is_not_modelled_says_so_with_its_line():
    @gluon.jit
    def counts(x, out, layout: gl.constexpr):
        gl.store(out, gl.histogram(gl.load(x + gl.arange(0, 8, layout)), 4, layout=layout))

    with pytest.raises(gluon_model.ModelError, match=r"test_model.py:\d+: .*\n.*histogram is not modelled"):
        gluon_model.run(
            counts, 1, torch.zeros(8, dtype=torch.int32), torch.zeros(4), gl.BlockedLayout([1], [32], [4], [0])
        )


def test_an_endless_loop_ends():
    @gluon.jit
    def forever(x):
        while gl.load(x) == 0:
            gl.store(x, 0.0)

    with pytest.raises(gluon_model.ModelError, match="does not end"):
        gluon_model.run(forever, 1, torch.zeros(1), most_steps=1000)


def test_an_error_in_a_worker_comes_out_with_its_line_and_leaves_nothing_behind():
    @gluon.jit
    def worker(x):
        gl.store(x, gl.arange(0, 4) + gl.arange(0, 8))

    @gluon.jit
    def default(x):
        gl.store(x, 1.0)

    @gluon.jit
    def both(x):
        gl.warp_specialize([(default, (x,)), (worker, (x,))], [1])

    for _ in range(2):
        with pytest.raises(gluon_model.ModelError, match=r"gl.store\(x, gl.arange\(0, 4\) \+ gl.arange\(0, 8\)\)"):
            gluon_model.run(both, 1, torch.zeros(1))
