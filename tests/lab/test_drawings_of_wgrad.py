"""The drawings of lessons 41 and 42: what a tile reads, and as many pieces, programs and slots as are asked for."""

import pytest
from matplotlib.colors import to_hex

from kernels.lab import drawings
from kernels.lab.drawings.language import fill


def boxes(ax, role):
    return [patch for patch in ax.patches if to_hex(patch.get_facecolor()).upper() == fill(role).upper()]


def test_a_tile_of_weights_reads_every_pixel_and_a_tile_of_the_output_few():
    forward, backward = drawings.wgrad_tiles().axes
    assert len(boxes(forward, "output")) == len(boxes(backward, "output")) == 1
    read, all_pixels = (sorted(box.get_height() for box in boxes(ax, "input")) for ax in (forward, backward))
    assert read == [0.5, 1.4] and all_pixels == [8, 8]


@pytest.mark.parametrize("pieces", [2, 4, 6])
def test_each_piece_has_a_program_and_a_slot(pieces):
    (ax,) = drawings.split_k(pieces).axes
    said = [text.get_text() for text in ax.texts]
    assert [f"piece {z}" in said and f"$D_{z}$" in said for z in range(pieces + 1)] == [True] * pieces + [False]
    assert len(boxes(ax, "input")) == 2 * pieces


def test_a_number_of_pieces_that_cannot_be_drawn_is_named():
    with pytest.raises(ValueError, match="pieces is 7, needs to be from 2 to 6"):
        drawings.split_k(7)


def test_a_row_of_im2col_lists_what_its_output_pixel_sees():
    figure = drawings.im2col_rows((0, 4))
    assert "row 0: blank, blank, blank, blank, 0, 1, blank, 5, 6." in figure.alt
    assert "row 4: 6, 7, 8, 11, 12, 13, 16, 17, 18." in figure.alt
    for ax, seen in zip(figure.axes, (4, 9)):  # in the image, and once more in A
        assert len(boxes(ax, "input")) == 2 * seen
    with pytest.raises(ValueError, match="rows holds 6, needs numbers from 0 to 5: there are 2 × 3 output pixels"):
        drawings.im2col_rows((0, 6))
