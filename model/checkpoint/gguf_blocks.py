"""Block-quantised tensors of GGUF files as unsigned codes with a scale and a minimum for each 32 inputs, in float16.

Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 lose nothing: signed types are their codes plus an offset, with the minimum offset
· -scale, which only moves float16's exponent. Of Q4_K and Q5_K the products of a super-block's factor with its blocks'
6-bit scales and minima are rounded to float16. Source: the block structures in ggml's ggml-common.h.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from model.cpu.block_weight import BLOCK

Bytes: TypeAlias = NDArray[np.uint8]
Halves: TypeAlias = NDArray[np.float16]

_SUPER_BLOCKS = 8
"""Blocks in a super-block of the K types."""


class BlockCodes(NamedTuple):
    """W[n, k] = scales[n, k // 32] * codes[n, k] + minima[n, k // 32]."""

    codes: Bytes  # (out, in), below 2 ** bits
    scales: Halves  # (out, in / 32)
    minima: Halves  # (out, in / 32)
    bits: int


def has_blocks(type_id: int) -> bool:
    """Whether a tensor of this type of ggml's is stored in blocks whose codes can be kept."""
    return type_id in _READERS


def block_codes(type_id: int, stored: Bytes, shape: tuple[int, int]) -> BlockCodes | None:
    """Return the codes of a tensor of `shape` (out, in) from its bytes in the file, which are only read.

    None where its type has no such codes, or a scale or minimum is not finite in float16.
    """
    if not has_blocks(type_id):
        return None
    out_features, in_features = shape
    bits, block_bytes, read = _READERS[type_id]
    codes, scales, minima = read(stored.reshape(-1, block_bytes))
    if not (np.isfinite(scales).all() and np.isfinite(minima).all()):
        return None
    num_blocks = in_features // BLOCK
    return BlockCodes(
        codes.reshape(shape), scales.reshape(out_features, num_blocks), minima.reshape(out_features, num_blocks), bits
    )


_Parts: TypeAlias = tuple[Bytes, Halves, Halves]
"""Codes, scales and minima, in any shape."""


def _read_q4_0(blocks: Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, _times(scales, -8)


def _read_q4_1(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _read_q5_0(blocks: Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return _with_fifth_bits(_nibbles(blocks[:, 6:]), blocks[:, 2:6]), scales, _times(scales, -16)


def _read_q5_1(blocks: Bytes) -> _Parts:
    return _with_fifth_bits(_nibbles(blocks[:, 8:]), blocks[:, 4:8]), _halves(blocks, 0), _halves(blocks, 2)


def _read_q8_0(blocks: Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scales, _times(scales, -128)  # the sign bit flipped: 128 added


def _read_q4_k(blocks: Bytes) -> _Parts:
    return _super_block_nibbles(blocks[:, 16:]), *_super_block_factors(blocks)


def _read_q5_k(blocks: Bytes) -> _Parts:
    codes = _super_block_nibbles(blocks[:, 48:])
    for block in range(_SUPER_BLOCKS):  # bit `block` of byte i belongs to code i of that block
        codes[:, block] |= (blocks[:, 16:48] >> np.uint8(block) & np.uint8(1)) << np.uint8(4)
    return codes, *_super_block_factors(blocks)


_READERS: Mapping[int, tuple[int, int, Callable[[Bytes], _Parts]]] = {
    Type.Q4_0: (4, 18, _read_q4_0),
    Type.Q4_1: (4, 20, _read_q4_1),
    Type.Q5_0: (8, 22, _read_q5_0),
    Type.Q5_1: (8, 24, _read_q5_1),
    Type.Q8_0: (8, 34, _read_q8_0),
    Type.Q4_K: (4, 144, _read_q4_k),
    Type.Q5_K: (8, 176, _read_q5_k),
}
"""Bits of a code, bytes of a block in the file, and how blocks (N, bytes) are read."""


def _halves(blocks: Bytes, start: int) -> Halves:
    """The float16 at byte `start` of each block, (N,)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")[:, 0]


def _times(scales: Halves, offset: int) -> Halves:
    with np.errstate(over="ignore", invalid="ignore"):
        return scales * np.float16(offset)


def _nibbles(pairs: Bytes) -> Bytes:
    """Codes (N, 32) from 16 bytes with the first half of them in the lower bits."""
    codes = np.empty((len(pairs), BLOCK), np.uint8)
    np.bitwise_and(pairs, 15, out=codes[:, : BLOCK // 2])
    np.right_shift(pairs, 4, out=codes[:, BLOCK // 2 :])
    return codes


def _with_fifth_bits(codes: Bytes, high: Bytes) -> Bytes:
    """Set bit 4 of codes (N, 32) from the bits of `high` (N, 4), the lowest first."""
    codes |= np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)
    return codes


def _super_block_nibbles(pairs: Bytes) -> Bytes:
    """Codes (N, 8, 32) from 128 bytes: each 32 hold a block in their lower bits, and the next one in the upper."""
    pairs = pairs.reshape(-1, _SUPER_BLOCKS // 2, BLOCK)
    codes = np.empty((len(pairs), _SUPER_BLOCKS, BLOCK), np.uint8)
    np.bitwise_and(pairs, 15, out=codes[:, ::2])
    np.right_shift(pairs, 4, out=codes[:, 1::2])
    return codes


def _super_block_factors(blocks: Bytes) -> tuple[Halves, Halves]:
    """Scales and minima (N, 8) from two float16 and, in 12 bytes, eight scales and eight minima of 6 bits.

    Bytes 0 … 3 hold the first four scales, 4 … 7 the first four minima, in their lower 6 bits; 8 … 11 the lower 4 bits
    of the other scales (their lower halves) and minima (upper halves), whose upper 2 bits top those of bytes 0 … 7.
    """
    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.hstack([first & 63, third & 15 | first >> 6 << 4])
    minima = np.hstack([second & 63, third >> 4 | second >> 6 << 4])
    with np.errstate(over="ignore", invalid="ignore"):
        d, d_min = (_halves(blocks, start).astype(np.float32)[:, None] for start in (0, 2))
        return (d * scales).astype(np.float16), (-d_min * minima).astype(np.float16)
