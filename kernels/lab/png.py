"""Pictures as small files: a palette of as few colours as do no harm, and the same bytes for the same picture."""

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image

#: Sizes of palettes to try, smallest first: up to 16 colours two pixels a byte, then one.
PALETTES = (8, 10, 12, 14, 16, 24, 32, 64)
#: What the pixels of a colour count for beside its distance, as powers, to try: without them a wide area's shade is
#: lost, with all of them a marker's ink.
SHARES = (0.35, 0.2, 0.1)
#: The most that one pixel's channel may be off, and the most that all may be, as a root mean square. The first keeps a
#: marker's ink, whose pixels are few; the second a wide area's shade.
WORST, MEAN = 48, 6


def deflated(data: bytes) -> bytes:
    """``data`` by zlib's hardest search."""
    packer = zlib.compressobj(9, memLevel=9)
    return packer.compress(data) + packer.flush()


def small(png: bytes, pack=deflated) -> bytes:
    """A palette PNG of the picture in ``png``, which comes back as it is if it has been here before, packed as well.

    pack: deflates bytes, as zlib's streams are; zopfli's ``compress`` takes a tenth fewer, and a hundred times as long.
    """
    image = Image.open(io.BytesIO(png))
    if image.mode == "P" and len(image.getcolors()) <= PALETTES[-1]:
        return min(png, encoded(image, pack), key=len)
    image = image.convert("RGB")
    if image.getcolors(1 << 14) is None:  # a photograph: its colours would be too many to weigh
        image = image.quantize(256, dither=Image.Dither.NONE).convert("RGB")
    channels = 1 << np.array([16, 8, 0])  # a colour as one number, as which it is found faster
    numbers, where, counts = np.unique(np.asarray(image) @ channels, return_inverse=True, return_counts=True)
    colours = (numbers[:, None] // channels % 256).astype(float)
    for size, share in itertools.product(PALETTES, SHARES):
        stands_for, palette = _palette(colours, counts, counts**share, size)
        off = np.abs(palette[stands_for] - colours).max(axis=-1)
        if off.max() <= WORST and np.average(off**2, weights=counts) <= MEAN**2:
            break
    small = Image.frombytes("P", image.size, stands_for[where].astype(np.uint8).tobytes())
    small.putpalette(palette.astype(np.uint8).tobytes())
    return encoded(small, pack)


def _palette(colours, counts, weights, size: int):
    """For each colour the number of the one that stands for it, and these: at most ``size``.

    First the commonest, then whichever is furthest from those that are there, by distance and weight; then each is moved
    to the middle of what it stands for, or to the colour that most of its pixels have.
    """
    chosen = [int(counts.argmax())]
    nearest = ((colours - colours[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(size, len(colours)):
        chosen.append(int((nearest * weights).argmax()))
        nearest = np.minimum(nearest, ((colours - colours[chosen[-1]]) ** 2).sum(axis=1))
    palette = colours[chosen]
    for _ in range(4):
        stands_for = ((colours[:, None] - palette) ** 2).sum(axis=-1).argmin(axis=1)
        for number in np.unique(stands_for):
            its, pixels = colours[stands_for == number], counts[stands_for == number]
            palette[number] = np.average(its, axis=0, weights=pixels).round()
            if 2 * pixels.max() > pixels.sum():
                palette[number] = its[pixels.argmax()]
    return ((colours[:, None] - palette) ** 2).sum(axis=-1).argmin(axis=1), palette


def encoded(image: Image.Image, pack=deflated) -> bytes:
    """A palette image as a PNG: no filter, which palettes do not gain from, and a hard search.

    Pillow filters pixels of four bits, and its zlib searches less: a fifth more bytes.
    """
    used, pixels = np.unique(np.asarray(image), return_inverse=True)
    palette = np.array(image.getpalette(), np.uint8).reshape(-1, 3)[used]
    colours, place = np.unique(palette, axis=0, return_inverse=True)  # one order, each colour once
    pixels = place.reshape(-1)[pixels].reshape(image.height, image.width).astype(np.uint8)
    bits = 4 if len(colours) <= 16 else 8
    if bits == 4:
        pixels = np.pad(pixels, ((0, 0), (0, image.width % 2)))
        pixels = pixels[:, ::2] << 4 | pixels[:, 1::2]
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # each row begins with its filter, 0: none
    header = struct.pack(">IIBBBBB", image.width, image.height, bits, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", colours.tobytes()), (b"IDAT", pack(rows.tobytes())))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    )
