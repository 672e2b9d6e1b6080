"""Weights as integers in blocks of 32 inputs that share a scale and a minimum: their layout in memory, and packing.

The kernels take 16 outputs at once, so those stand side by side: tiles of 16 outputs after one another; in a tile its
blocks in the order of inputs; in a block 16 scales and 16 minima in float16, then as many lines of 64 bytes as a code
has bits.

    8 bits: byte 4n + j of line i is the code of output n for input 4i + j of the block
    4 bits: byte 4n + j of line i has input 4i + j in its lower half, input 16 + 4i + j in its upper half

Knows no file format.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model.cpu.jit import inlined, kernel
from model.cpu.simd import WIDTH, Array, add, load, max_lanes, maximum, multiply, splat, subtract, sum_lanes

BLOCK = 32
"""Inputs that share a scale and a minimum."""
LANES = 16
"""Outputs in a tile."""

_LINE_BYTES = 64
_HEADER_BYTES = 4 * LANES
"""Of a block: scales, then minima."""
_LEVELS = 255
_LARGEST_HALF = np.float32(65504)
_HALF_BIAS = np.float32(2.0**112)
"""float16's exponents, read as float32's, are less by this factor."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """W (out, in) as unsigned codes: W[n, k] = d[n, k // 32] * code[n, k] + m[n, k // 32]."""

    memory: NDArray[np.uint8]
    """All tiles; begins at a multiple of 64 bytes. The last tile is filled up with zeros."""
    out_features: int
    in_features: int
    """A multiple of 32."""
    bits: int
    """Of a code: 4 or 8."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the weight takes in memory."""
        return self.memory.nbytes

    @property
    def address(self) -> int:
        """Where the first tile begins; valid while this object lives."""
        return int(self.memory.ctypes.data)

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows `ids` (n,) of W as float32 (n, in). `ids` must lie in 0 … out_features - 1."""
        rows = np.empty((len(ids), self.in_features), np.float32)
        _read_rows(self.memory, self.memory.view(np.uint16), self.bits, np.ascontiguousarray(ids), rows)
        return rows


def pack_blocks(
    codes: NDArray[np.uint8],
    scales: NDArray[np.float16] | NDArray[np.float32],
    minima: NDArray[np.float16] | NDArray[np.float32],
    bits: int,
) -> BlockWeight:
    """Pack codes (out, in) below 2 ** bits with the scales and minima (out, in / 32) of their blocks.

    Raises ValueError where `in` is not a multiple of 32, or a scale or minimum is not finite in float16.
    """
    assert bits in (4, 8), bits
    assert bits == 8 or codes.max() < 16, codes.max()
    out_features, in_features = codes.shape
    num_blocks = _num_blocks(in_features)
    assert scales.shape == minima.shape == (out_features, num_blocks), (codes.shape, scales.shape, minima.shape)
    minimum_bits, scale_bits = _finite_halves(minima, "minimum"), _finite_halves(scales, "scale")
    memory = _tiles(out_features, num_blocks, bits)
    _pack_halves(scale_bits, minimum_bits, bits, memory.view(np.uint16))
    _pack_codes(np.ascontiguousarray(codes), bits, memory)
    return BlockWeight(memory, out_features, in_features, bits)


def quantise_blocks(weight: Tensor) -> BlockWeight:
    """Quantise a weight (out, in) of any float type to 8 bits; no element is off by more than half its block's scale.

    Minima are rounded down to float16 and scales up, so that 256 codes span each block whatever the rounding does.
    Raises ValueError where `in` is not a multiple of 32, or an element is not finite or too large for float16.
    """
    values = weight.float().contiguous().numpy()
    out_features, in_features = values.shape
    num_blocks = _num_blocks(in_features)
    memory = _tiles(out_features, num_blocks, 8)
    refused = _quantise(values, memory.view(np.uint16), memory.view(np.uint32))
    if refused >= 0:
        row, block = divmod(refused, num_blocks)
        bounds = values[row, block * BLOCK : (block + 1) * BLOCK]
        span = f"{bounds.min()}…{bounds.max()}"
        raise ValueError(f"row {row}, block {block}: the range {span} is not finite in float16")
    return BlockWeight(memory, out_features, in_features, 8)


def _tiles(out_features: int, num_blocks: int, bits: int) -> NDArray[np.uint8]:
    """Zeros from a multiple of 64 bytes on."""
    num_bytes = -(-out_features // LANES) * num_blocks * (_HEADER_BYTES + _LINE_BYTES * bits)
    memory = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + num_bytes]


def _num_blocks(in_features: int) -> int:
    if in_features % BLOCK:
        raise ValueError(f"in_features {in_features} is not a multiple of {BLOCK}")
    return in_features // BLOCK


def _finite_halves(values: NDArray[np.float16] | NDArray[np.float32], name: str) -> NDArray[np.uint16]:
    """The bits of the values in float16."""
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(values, np.float16)
    finite = np.isfinite(halves)
    if not finite.all():
        row, block = np.argwhere(~finite)[0]
        raise ValueError(f"row {row}, block {block}: the {name} {values[row, block]} is not finite in float16")
    return halves.view(np.uint16)


@kernel
def _pack_halves(scales: Array, minima: Array, bits: int, memory: Array) -> None:
    """Write scales and minima (out, in / 32) into `memory`, which is seen as uint16 here."""
    out_features, num_blocks = scales.shape
    pitch = (_HEADER_BYTES + _LINE_BYTES * bits) // 2
    for n in range(out_features):
        at = n // LANES * num_blocks * pitch + n % LANES
        for block in range(num_blocks):
            memory[at] = scales[n, block]
            memory[at + LANES] = minima[n, block]
            at += pitch


@kernel
def _pack_codes(codes: Array, bits: int, memory: Array) -> None:
    """Write codes (out, in) into `memory`."""
    out_features, in_features = codes.shape
    block_bytes = _HEADER_BYTES + _LINE_BYTES * bits
    tile_bytes = in_features // BLOCK * block_bytes
    for n in range(out_features):
        at = n // LANES * tile_bytes + _HEADER_BYTES + 4 * (n % LANES)
        for block in range(0, in_features, BLOCK):
            for i in range(bits):
                for j in range(4):
                    k = block + 4 * i + j
                    code = codes[n, k]
                    if bits == 4:
                        code |= codes[n, k + BLOCK // 2] << 4
                    memory[at + _LINE_BYTES * i + j] = code
            at += block_bytes


@inlined
def _half(bits: int) -> np.float32:
    """float32 of a finite float16, by its bits."""
    magnitude = np.int32((np.int32(bits) & 0x7FFF) << 13).view(np.float32) * _HALF_BIAS
    return -magnitude if bits & 0x8000 else magnitude


@inlined
def _half_towards(value: np.float32, is_up: bool) -> int:
    """Bits of the next float16 towards an infinity; infinity, too, where the value is beyond the last one."""
    magnitude = abs(value)
    is_away = (value > 0) == is_up
    if magnitude > _LARGEST_HALF:
        bits = 0x7C00 if is_away else 0x7BFF
    else:
        bits = int(np.float32(magnitude / _HALF_BIAS).view(np.int32)) >> 13
        if _half(bits) < magnitude and is_away:
            bits += 1
        elif _half(bits) > magnitude and not is_away:  # a subnormal that float32 has rounded
            bits -= 1
    return bits | 0x8000 if value < 0 else bits


@kernel
def _quantise(values: Array, halves: Array, words: Array) -> int:
    """Write `values` (out, in) to the tiles, which are seen as uint16 and uint32.

    Returns the first block, counted through all rows, that float16 cannot hold; -1 where there is none.
    """
    out_features, in_features = values.shape
    num_blocks = in_features // BLOCK
    pitch = (_HEADER_BYTES + _LINE_BYTES * 8) // 4  # words in a block
    codes = np.empty(BLOCK, np.uint8)
    zero = splat(np.float32(0))
    for n in range(out_features):
        lane = n % LANES
        for block in range(num_blocks):
            start = (n * num_blocks + block) * BLOCK
            a, b = load(values, start), load(values, start + WIDTH)
            odd = sum_lanes(add(multiply(a, zero), multiply(b, zero)))  # NaN where an element is not finite
            lowest = -max_lanes(maximum(subtract(zero, a), subtract(zero, b)))
            minimum_bits = _half_towards(lowest, False)
            minimum = _half(minimum_bits)
            span = max_lanes(maximum(a, b)) - minimum
            scale_bits = _half_towards(span / np.float32(_LEVELS), True)
            if odd != 0 or minimum_bits & 0x7C00 == 0x7C00 or scale_bits & 0x7C00 == 0x7C00:
                return int(n * num_blocks + block)
            scale = _half(scale_bits)
            inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
            for k in range(BLOCK):
                steps = (values[n, block * BLOCK + k] - minimum) * inverse
                codes[k] = np.uint8(min(max(steps, np.float32(0)), np.float32(_LEVELS)) + np.float32(0.5))
            at = (n // LANES * num_blocks + block) * pitch
            halves[2 * at + lane], halves[2 * at + LANES + lane] = scale_bits, minimum_bits
            lines = codes.view(np.uint32)
            for i in range(8):
                words[at + _HEADER_BYTES // 4 + LANES * i + lane] = lines[i]
    return -1


@kernel
def _read_rows(memory: Array, halves: Array, bits: int, ids: Array, rows: Array) -> None:
    """Write the weight's rows `ids` into `rows`; `halves` is `memory` seen as uint16."""
    num_blocks = rows.shape[1] // BLOCK
    block_bytes = _HEADER_BYTES + _LINE_BYTES * bits
    for t in range(len(ids)):
        at = ids[t] // LANES * num_blocks * block_bytes
        lane = ids[t] % LANES
        for block in range(num_blocks):
            scale, minimum = _half(halves[at // 2 + lane]), _half(halves[at // 2 + LANES + lane])
            for i in range(bits):
                for j in range(4):
                    code = memory[at + _HEADER_BYTES + _LINE_BYTES * i + 4 * lane + j]
                    k = BLOCK * block + 4 * i + j
                    if bits == 4:
                        rows[t, k] = scale * np.float32(code & 15) + minimum
                        rows[t, k + BLOCK // 2] = scale * np.float32(code >> 4) + minimum
                    else:
                        rows[t, k] = scale * np.float32(code) + minimum
            at += block_bytes
