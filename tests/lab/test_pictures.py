"""Pictures show what the accesses say: read back from the figure's own rectangles and texts."""


import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from kernels.lab import style, trace


@triton.jit
def every_second(src, dst, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(src + i, mask=i < n, other=0.0)
    x += tl.load(src, mask=n > 0, other=0.0)
    tl.store(dst + 2 * i, x, mask=2 * i < n)


@triton.jit
def fill_tiles(dst, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    tl.store(dst + m * N + n, m + n + 0.0, mask=(m < M) & (n < N))


def texts(ax) -> dict[tuple[int, int], str]:
    """What is written in each cell: (row, column) -> text."""
    return {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in ax.texts}


def fills(ax) -> dict[tuple[int, int], tuple[str, bool]]:
    """Colour of each filled cell and whether it is hatched."""
    found = {}
    for patch in ax.patches:
        if isinstance(patch, Rectangle) and patch.get_fill():
            for column in range(round(patch.get_width())):
                key = (round(patch.get_y() + 0.5), round(patch.get_x() + 0.5) + column)
                found[key] = (to_hex(patch.get_facecolor()).upper(), bool(patch.get_hatch()))
    return found


def trace_every_second():
    return trace(every_second, (2,), torch.arange(12.0), torch.zeros(12), 12, BLOCK=8)


def test_one_dimension_by_program():
    t = trace_every_second()
    (ax,) = t.picture("src").axes
    assert ax.get_title() == "src [12] loaded" and ax.get_xlabel() == "element"
    assert texts(ax) == {(0, 0): "0\n×2", **{(0, i): "0" if i < 8 else "1" for i in range(1, 12)}}
    assert fills(ax)[0, 0] == (style.FILLS[0], True)
    assert fills(ax)[0, 7] == (style.FILLS[0], False) and fills(ax)[0, 8] == (style.FILLS[1], False)


def test_untouched_elements_are_blank():
    (ax,) = trace_every_second().picture("dst").axes
    assert ax.get_title() == "dst [12] stored"
    assert texts(ax) == {(0, i): "0" for i in range(0, 12, 2)}
    assert fills(ax)[0, 1] == ("#FFFFFF", False)


def test_one_program_in_the_order_of_its_accesses():
    figure = trace_every_second().picture("src", program=0)
    (ax,) = figure.axes
    assert ax.get_title() == "src [12] loaded, program 0"
    assert texts(ax) == {(0, 0): "1\n×2", **{(0, i): "1" for i in range(1, 8)}}
    notes = figure.get_supxlabel()
    assert "load 1: line" in notes and "x = tl.load(src + i, mask=i < n, other=0.0)" in notes
    assert "load 2: line" in notes and "more than one access" in notes
    (ax,) = trace_every_second().picture("src", program=(1,)).axes
    assert texts(ax) == {(0, 0): "2", **{(0, i): "1" for i in range(8, 12)}}


def test_two_dimensions_loads_and_stores_in_their_own_panels():
    x = torch.zeros(6, 5)
    with trace.recording() as t:
        fill_tiles[(2, 2)](x, 6, 5, BM=4, BN=4)
    (ax,) = t.picture("dst", axes=("time t", "channel d")).axes
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("time t", "channel d")
    assert texts(ax) == {(m, n): f"{m // 4},{n // 4}" for m in range(6) for n in range(5)}
    both = trace(every_second, (1,), x.flatten(), x.flatten(), 30, BLOCK=16)
    assert len(both.picture("src").axes) == 1
    in_place = torch.zeros(16)
    t = trace(increment, (2,), in_place, BLOCK=8)
    assert [ax.get_title() for ax in t.picture("x").axes] == ["x [16] loaded", "x [16] stored"]


@triton.jit
def increment(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1)


def test_more_dimensions_need_an_index():
    x = torch.zeros(2, 3, 4)
    t = trace(increment, (3,), x, BLOCK=8)
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 4\), and a picture needs one or two dimensions"):
        t.picture("x")
    ax = t.picture("x", index=1).axes[0]
    assert ax.get_title() == "x[1] loaded"
    assert texts(ax)[0, 0] == "1" and texts(ax)[1, 0] == "2" and len(texts(ax)) == 12
    ax = t.picture("x", index=np.s_[:, 2, 1:]).axes[0]
    assert ax.get_title() == "x[:, 2, 1:] loaded"
    assert texts(ax) == {(r, c): str((12 * r + 9 + c) // 8) for r in range(2) for c in range(3)}


def test_long_and_large_tensors():
    t = trace(increment, (3,), torch.zeros(96), BLOCK=32)
    ax = t.picture("x").axes[0]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("rows of 32", "element, modulo 32")
    assert texts(ax) == {(r, c): str(r) for r in range(3) for c in range(32)}
    t = trace(fill_tiles, (2, 2), torch.zeros(100, 128), 100, 128, BM=64, BN=64)
    (ax,) = t.picture("dst").axes
    assert sorted(texts(ax).values()) == ["0,0", "0,1", "1,0", "1,1"]
    assert fills(ax)[63, 63][0] == style.FILLS[0] and fills(ax)[99, 64][0] == style.FILLS[3]


def test_expanded_tensors_show_every_index_of_a_shared_element():
    (ax,) = trace(every_second, (1,), torch.zeros(1).expand(4), torch.zeros(4), 1, BLOCK=4).picture("src").axes
    assert texts(ax) == {(0, i): "0" for i in range(4)}


def test_lanes_outside_are_mentioned():
    t = trace(increment, (2,), torch.zeros(12), BLOCK=8)
    assert "Not drawn: 8 active lanes outside x." in t.picture("x").get_supxlabel()


def test_a_picture_of_one_program_mentions_its_own_lanes_outside():
    @triton.jit
    def copy_ahead(src, dst, AHEAD: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(dst + i, tl.load(src + i + AHEAD))

    t = trace(copy_ahead, (2,), torch.arange(16.0), torch.zeros(16), AHEAD=3, BLOCK=8)  # program 1 alone runs over
    assert "Not drawn: 3 active lanes outside src." in t.picture("src").get_supxlabel()
    assert "Not drawn: 3 active lanes outside src." in t.picture("src", program=1).get_supxlabel()
    assert "Not drawn" not in t.picture("src", program=0).get_supxlabel()


def test_bad_arguments():
    t = trace_every_second()
    with pytest.raises(ValueError, match="name is 'x'"):
        t.picture("x")
    with pytest.raises(ValueError, match=r"program is \(5, 0, 0\): that program of every_second does not touch src"):
        t.picture("src", program=5)
    with pytest.raises(ValueError, match="the picture has 1 dimensions, name each"):
        t.picture("src", axes=("row", "column"))


def test_figures_are_the_same_bytes_each_time():
    first, second = (trace_every_second().picture("src").png() for _ in range(2))
    assert first == second and first.startswith(b"\x89PNG") and b"Software" not in first


def test_a_picture_says_in_words_what_it_draws():
    alt = trace_every_second().picture("src").alt
    assert "program 0 touches" in alt and len(alt) > 40
    assert trace_every_second().picture("src", alt="Mine.").alt == "Mine."
    assert "access 1 touches" in trace_every_second().picture("src", program=0).alt
