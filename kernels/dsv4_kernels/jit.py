"""Device functions that several kernels share. Imports triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def follow(PDL: tl.constexpr):
    """For the top of a kernel that reads nothing earlier: wait for all kernels before, and let the next one be placed.

    ``PDL``: see :func:`dsv4_kernels.launch.pdl_of`. With 2 the next one takes its places before the wait. It waits
    itself until this one has ended, hence until those before have. If it reads results before that (experts, streams),
    and not weights alone, its predecessor has to wait first.
    """
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    elif PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def e8m0_of_amax(amax):
    """Biased exponent, int32, of the least power of two ``s`` with ``max(amax, 1e-4) <= 448 * s`` (448 = 1.75 * 2^8).

    From the bits: a division would have to be correctly rounded to hit exact powers of two.
    """
    bits = tl.maximum(amax, 1e-4).to(tl.int32, bitcast=True)
    return (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)


@triton.jit
def e8m0_of_fp4(amax):
    """As :func:`e8m0_of_amax` for e2m1, whose largest value is 6 = 1.5 * 2^2."""
    bits = tl.maximum(amax, 1e-4).to(tl.int32, bitcast=True)
    return (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000).to(tl.int32)


@triton.jit
def to_e2m1(x):
    """4-bit codes, int32, of float32 ``x`` within ±6: to the nearest, ties to the even code."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | ((x < 0.0).to(tl.int32) << 3)


@triton.jit
def power_of_e8m0(code):
    """``2 ** (code - 127)`` in float32 for int32 codes 1..254."""
    return (code << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """Round to nearest even with saturation at 448; ``x`` float32, NaN stays NaN."""
    return tl.clamp(x, -448.0, 448.0).to(tl.float8e4nv)


@triton.jit
def clamped_swiglu(gate, up, limit):
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)``, float32; NaN stays NaN."""
    gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def arrives_last(counter_ptr, programs):
    """Whether this program is the last of ``programs`` to get here; what the others stored before is then visible.

    The last one puts the counter back to zero, so that the next launch (or graph replay) finds it so.
    """
    tl.debug_barrier()
    before = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    last = before == programs - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def _unit(word):
    return ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def uniform_of(seed, c1, c2):
    """Number 0 of ``dsv4_kernels.philox.uniform``: one float32 of (0, 1)."""
    zero = c1 * 0
    word, _, _, _ = tl.philox(seed, zero.to(tl.uint32), c1.to(tl.uint32), (zero + c2).to(tl.uint32), zero.to(tl.uint32))
    return _unit(word)


@triton.jit
def uniforms_of(seed, first, c1, c2, BLOCK: tl.constexpr):
    """Numbers ``first .. first + BLOCK - 1`` of ``dsv4_kernels.philox.uniform``; ``first`` is a multiple of four."""
    c0 = first // 4 + tl.arange(0, BLOCK // 4)
    zero = c0 * 0
    w0, w1, w2, w3 = tl.philox(
        seed, c0.to(tl.uint32), (zero + c1).to(tl.uint32), (zero + c2).to(tl.uint32), zero.to(tl.uint32)
    )
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return _unit(tl.reshape(words, (BLOCK,)))


@triton.jit
def ordered_key(value):
    """int64 of ``[0, 2^32)`` in the order of float32 ``value``; -0 equals 0, NaN counts as -inf."""
    value = tl.where(value == value, value, float("-inf")) + 0.0
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return bits.to(tl.int64) + 2147483648
