"""Device functions that several kernels share. Imports triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def e8m0_of_amax(amax):
    """Biased exponent, int32, of the least power of two ``s`` with ``max(amax, 1e-4) <= 448 * s`` (448 = 1.75 * 2^8).

    From the bits: a division would have to be correctly rounded to hit exact powers of two.
    """
    bits = tl.maximum(amax, 1e-4).to(tl.int32, bitcast=True)
    return (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)


@triton.jit
def power_of_e8m0(code):
    """``2 ** (code - 127)`` in float32 for int32 codes 1..254."""
    return (code << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """Round to nearest even with saturation at 448; ``x`` float32, NaN stays NaN."""
    return tl.clamp(x, -448.0, 448.0).to(tl.float8e4nv)
