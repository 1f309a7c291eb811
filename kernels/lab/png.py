"""Pictures as small files: a palette of as few colours as do no harm, and the same bytes for the same picture."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

#: Palettes to try, smallest first: two pixels a byte, then one.
PALETTES = (16, 32, 64)
#: The most that one pixel's channel may be off, and the most that all may be, as a root mean square. The first keeps a
#: marker's ink, whose pixels are few; the second a wide area's shade.
WORST, MEAN = 48, 5


def small(png: bytes) -> bytes:
    """A palette PNG of the picture in ``png``, which comes back as it is if it has been here before."""
    image = Image.open(io.BytesIO(png))
    if image.mode == "P" and encoded(image) == png:
        return png
    image = image.convert("RGB")
    for count in PALETTES:
        # The palette covers all colours that occur: the most frequent alone would leave out a marker's.
        candidate = image.quantize(count, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        off = np.abs(np.asarray(candidate.convert("RGB"), dtype=float) - np.asarray(image)).max(axis=-1)
        if off.max() <= WORST and (off**2).mean() <= MEAN**2:
            break
    return encoded(candidate)


def encoded(image: Image.Image) -> bytes:
    """A palette image as a PNG: no filter, which palettes do not gain from, and zlib's hardest search.

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
    packer = zlib.compressobj(9, memLevel=9)
    header = struct.pack(">IIBBBBB", image.width, image.height, bits, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", colours.tobytes()), (b"IDAT", packer.compress(rows.tobytes()) + packer.flush()))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    )
