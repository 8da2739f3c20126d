"""A reader of PNG screenshots (8 bits, RGB or RGBA, not interlaced), so that tests need no image library."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt


def decode_png(blob: bytes) -> npt.NDArray[np.uint8]:
    """Return an array of height, width and RGB."""
    assert blob[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    width = height = depth = kind = interlace = 0
    while at < len(blob):
        length, tag = struct.unpack(">I4s", blob[at : at + 8])
        body = blob[at + 8 : at + 8 + length]
        if tag == b"IHDR":
            width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", body)
        elif tag == b"IDAT":
            packed += body
        at += 12 + length
    assert (depth, interlace) == (8, 0)
    channels = {2: 3, 6: 4}[kind]
    stride = width * channels
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, stride + 1)
    out = np.zeros((height, stride), np.uint8)
    before = np.zeros(stride, np.int64)
    for y in range(height):
        line = _unfilter(int(raw[y, 0]), raw[y, 1:].astype(np.int64), before, channels)
        out[y] = line
        before = line
    return out.reshape(height, width, channels)[:, :, :3]


def _unfilter(kind: int, line: npt.NDArray[np.int64], up: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
    if kind == 0:
        return line
    if kind == 1:
        return line.reshape(-1, step).cumsum(axis=0).reshape(-1) % 256
    if kind == 2:
        return (line + up) % 256
    done = line.copy()
    for i in range(len(line)):
        left = int(done[i - step]) if i >= step else 0
        corner = int(up[i - step]) if i >= step else 0
        above = int(up[i])
        if kind == 3:
            guess = (left + above) // 2
        else:
            pa, pb, pc = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
            guess = left if pa <= pb and pa <= pc else above if pb <= pc else corner
        done[i] = (done[i] + guess) % 256
    return done


def near(image: npt.NDArray[np.uint8], colour: str, tolerance: int = 24) -> npt.NDArray[np.bool_]:
    """Mask of the pixels close to a colour ``#rrggbb``."""
    wanted = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)])
    return (np.abs(image.astype(int) - wanted) <= tolerance).all(axis=2)
