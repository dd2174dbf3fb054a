"""Pictures as arrays, from bytes in the files of a data set; no other file is opened."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.files import damage_error

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # none that starts other programs
MOST_PIXELS = 1 << 24
DEEP = ("I", "F", "I;16", "I;16B", "I;16L")  # Pillow's names of pixels that are no bytes


def decode(where: str, cells: Iterable[Any], mode: str = "") -> np.ndarray:
    """Bytes of pictures of one size as `(records, height, width)` or `(records, height, width, channels)`.

    mode  Pillow's name of the channels; by default gray if all pictures are gray, else RGB.
    Raises: ConfigurationError for bytes that are no picture, and for pictures too large, of another size or pixel type.
    """
    try:
        from PIL import Image
    except ImportError:
        raise errors.refuse("pillow", "not installed", f"installed to read {where}", "pip install pillow") from None
    pictures: list[np.ndarray] = []
    for place, raw in enumerate(cells):
        at = f"{where}, record {place}"
        if not isinstance(raw, bytes):
            raise damage_error(
                at, "a path alone, or nothing", "with the picture's bytes", "embed them before it is saved"
            )
        try:
            with Image.open(io.BytesIO(raw), formats=FORMATS) as picture:
                if picture.width * picture.height > MOST_PIXELS or picture.mode in DEEP:
                    got = f"{picture.width} x {picture.height}, {picture.mode}"
                    raise damage_error(at, got, f"bytes, at most {MOST_PIXELS:,} pixels")
                pixels = np.asarray(picture.convert(mode or ("L" if picture.mode in ("1", "L") else "RGB")))
        except errors.ConfigurationError:
            raise
        except Exception as error:  # any error of a library that reads a damaged picture
            raise damage_error(
                at, f"no picture ({folders.reason(error)[:60]})", f"one of {', '.join(FORMATS)}"
            ) from None
        if pictures and pixels.shape[:2] != pictures[0].shape[:2]:
            raise damage_error(at, f"{pixels.shape[:2]}", f"{pictures[0].shape[:2]}, as the first", "resize them")
        pictures.append(pixels)
    if not pictures:
        raise damage_error(where, "no record", "at least one")
    colour = any(pixels.ndim == 3 for pixels in pictures)
    return np.stack([np.stack([p] * 3, axis=-1) if colour and p.ndim == 2 else p for p in pictures])
