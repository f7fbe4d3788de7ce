"""Parts of ``_once.py``: layouts, the two bf16 parts of ``fn``, and what becomes of a tile's sums (Gluon)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

TOK = gl.constexpr(16)  # tokens of a tile
DIMS = gl.constexpr(256)  # columns of each stream in a slice
PART = gl.constexpr(64)  # columns of a step: those of a swizzled row, and of a fragment of ``fn``
RECORD = gl.constexpr(32 * 16)  # of a tile and slice: the mixes' sums, then the squares', by token
SQUARES = gl.constexpr(24)  # the row of a record

ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
TOKENS = gl.constexpr(gl.SliceLayout(1, ROWS))
STREAMS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], [[4, 0], [8, 0]], [],
        [64, 64],
    )
)  # fmt: skip
FOLDED = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 8]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, 16]
    )
)  # fmt: skip
ONE_WARP = gl.constexpr(gl.BlockedLayout([1, 2, 4], [16, 2, 1], [1, 1, 1], [2, 1, 0]))
FOUR_WARPS = gl.constexpr(gl.BlockedLayout([1, 1, 2], [4, 4, 2], [4, 1, 1], [2, 1, 0]))
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]))
FRAGMENT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))


@gluon.jit
def _rounded(value):
    """float32 to bf16, two at once: neighbours in a lane are neighbours of a row."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [value], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _fn_places(fn_ptr, d: gl.constexpr, MIXES: gl.constexpr):
    """Of the first columns of each mix, ``[32, PART]``; places of mixes beyond the last are the last one's."""
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8], [0, 16], [0, 32]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [], [32, PART]
    )
    mix = gl.minimum(gl.arange(0, 32, layout=gl.SliceLayout(1, layout)), MIXES - 1)
    return fn_ptr + mix[:, None] * (4 * d) + gl.arange(0, PART, layout=gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def _fn_fragment(place):
    """``fn`` to 16 bits ``[64, PART]``: rows of 16 are eight mixes' high parts, then their low ones.

    The high part is rounded by integers: conversions one by one would take two microseconds of a launch.
    """
    value = gl.load(place, volatile=True)  # volatile, so that not all fragments are loaded before the first is made
    bits = (value.to(gl.int32, bitcast=True) + 0x8000) & -65536
    low = _rounded(value - bits.to(gl.float32, bitcast=True))
    high = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [bits], dtype=gl.bfloat16, is_pure=True, pack=2
    )
    both = gl.join(high.reshape([4, 8, PART]), low.reshape([4, 8, PART])).permute((0, 3, 1, 2))
    return gl.convert_layout(both.reshape([64, PART]), FRAGMENT, assert_trivial=True)


@gluon.jit
def _squares(x):
    wide = x.load(ROWS).to(gl.float32)
    return gl.sum(wide * wide, 1)


@gluon.jit
def _folded(acc):
    """Sums over high and low parts ``[64, TOK]``, added up: ``[32, TOK]``."""
    both = gl.sum(acc.reshape([4, 2, 8, TOK]), 1)
    return gl.convert_layout(both.reshape([32, TOK]), FOLDED, assert_trivial=True)


@gluon.jit
def _flat(ring, stage):
    """A stage's streams ``[4 * TOK, DIMS]``, stream by stream."""
    return ring.index(stage).reshape([4 * TOK, DIMS])


@gluon.jit
def _of_token(values):
    """A vector over tokens, in the layout that rows of streams have."""
    return gl.convert_layout(values, TOKENS, assert_trivial=True)


@gluon.jit
def _four(streams):
    """``[4 * TOK, PART]``, stream by stream, as four ``[TOK, PART]``."""
    low, high = gl.split(streams.reshape([2, 2, TOK, PART]).permute((2, 3, 1, 0)))
    f0, f1 = gl.split(low)
    f2, f3 = gl.split(high)
    return (
        gl.convert_layout(f0, ROWS, assert_trivial=True), gl.convert_layout(f1, ROWS, assert_trivial=True),
        gl.convert_layout(f2, ROWS, assert_trivial=True), gl.convert_layout(f3, ROWS, assert_trivial=True),
    )  # fmt: skip


@gluon.jit
def _until(counter_ptr, wanted):
    """Until the counter has come to ``wanted``; what was stored before is then visible, to each thread for itself."""
    seen = 0
    while seen < wanted:
        seen = gl.inline_asm_elementwise(
            "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [counter_ptr], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def _sums(partial_ptr, tile, m: gl.constexpr, layout: gl.constexpr, SLICES: gl.constexpr, PAD: gl.constexpr):
    """The slices' sums of row ``m`` of a tile's records, ``[TOK, PAD]``."""
    token = gl.arange(0, TOK, layout=gl.SliceLayout(1, layout))
    s = gl.arange(0, PAD, layout=gl.SliceLayout(0, layout))
    place = partial_ptr + tile * (SLICES * RECORD) + s[None, :] * RECORD + m * TOK + token[:, None]
    return gl.load(place, mask=(s < SLICES)[None, :] & (token >= 0)[:, None], other=0.0, cache_modifier=".cg")


@gluon.jit
def _pre_sums(partial_ptr, tile, layout: gl.constexpr, SLICES: gl.constexpr, PAD: gl.constexpr):
    """What the weights of the collapse are made of."""
    return (
        _sums(partial_ptr, tile, 0, layout, SLICES, PAD), _sums(partial_ptr, tile, 1, layout, SLICES, PAD),
        _sums(partial_ptr, tile, 2, layout, SLICES, PAD), _sums(partial_ptr, tile, 3, layout, SLICES, PAD),
        _sums(partial_ptr, tile, SQUARES, layout, SLICES, PAD),
    )  # fmt: skip


@gluon.jit
def _pre(sums, r, scale, base, hc_eps):
    mix = gl.sum(sums, 1) * r * scale + base
    return 1.0 / (1.0 + gl.exp(-mix)) + hc_eps


@gluon.jit
def _pre_weights(sums, scale, base, d: gl.constexpr, rms_eps, hc_eps):
    """Weights of the four streams in the collapse, by token; ``base``: those of the four."""
    r = gl.rsqrt(gl.sum(sums[4], 1) / (4 * d) + rms_eps)
    return (
        _pre(sums[0], r, scale, base[0], hc_eps), _pre(sums[1], r, scale, base[1], hc_eps),
        _pre(sums[2], r, scale, base[2], hc_eps), _pre(sums[3], r, scale, base[3], hc_eps),
    )  # fmt: skip


@gluon.jit
def _four_of(base_ptr):
    return gl.load(base_ptr), gl.load(base_ptr + 1), gl.load(base_ptr + 2), gl.load(base_ptr + 3)


@gluon.jit
def _reducer(
    which: gl.constexpr, sums, tiles, eps, w_smem, ready, SLICES: gl.constexpr, PAD: gl.constexpr, STAGES: gl.constexpr
):
    """Weights of the collapse, of every other tile (``which``: even or odd ones): two warps hide each other's waits."""
    layout: gl.constexpr = gl.BlockedLayout([4, PAD // 8], [4, 8], [1, 1], [0, 1])
    groups = gl.num_programs(0) // SLICES
    partial_ptr, counter_ptr, base_ptr, scale_ptr = sums
    scale = gl.load(scale_ptr)
    base = _four_of(base_ptr)
    count = which
    for tile in range(gl.program_id(0) // SLICES + which * groups, tiles, 2 * groups):
        stage = count % STAGES
        _until(counter_ptr + tile, SLICES)
        parts = _pre_sums(partial_ptr, tile, layout, SLICES, PAD)
        w0, w1, w2, w3 = _pre_weights(parts, scale, base, SLICES * DIMS, eps[0], eps[1])
        w_smem.index(stage * 4).store(w0)
        w_smem.index(stage * 4 + 1).store(w1)
        w_smem.index(stage * 4 + 2).store(w2)
        w_smem.index(stage * 4 + 3).store(w3)
        mbarrier.arrive(ready.index(stage), count=1)
        count += 2


@gluon.jit
def _collapse_tile(w0, w1, w2, w3, out_ptr, n_tokens, tile, out_stride, ring, stage, SLICES: gl.constexpr):
    """``out`` of a tile, this program's columns."""
    col = gl.program_id(0) % SLICES * DIMS + gl.arange(0, PART, layout=gl.SliceLayout(0, ROWS))
    token = tile * TOK + gl.arange(0, TOK, layout=TOKENS)
    place = out_ptr + token.to(gl.int64)[:, None] * out_stride + col[None, :]
    mask = (token < n_tokens)[:, None] & (col >= 0)[None, :]
    for c in gl.static_range(DIMS // PART):
        f0, f1, f2, f3 = _four(_flat(ring, stage).slice(c * PART, PART, dim=1).load(STREAMS).to(gl.float32))
        y = w0[:, None] * f0 + w1[:, None] * f1 + w2[:, None] * f2 + w3[:, None] * f3
        gl.store(place + c * PART, _rounded(y), mask=mask)


@gluon.jit
def _normed(c, axis: gl.constexpr, eps):
    inverse = 1.0 / (gl.sum(c, axis) + eps)
    return c * gl.expand_dims(inverse, axis)


@gluon.jit
def _mixes_of_tile(
    partial_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, n_tokens, tile, d: gl.constexpr, rms_eps, hc_eps,
    cube: gl.constexpr, AT_ONCE: gl.constexpr, SLICES: gl.constexpr, ITERS: gl.constexpr,
):  # fmt: skip
    """``post`` and ``comb`` of a tile. ``cube``: a layout of ``[TOK, 4, 4]``; sums of ``AT_ONCE`` slices, which divides
    ``SLICES``, are loaded at once.
    """
    tokens: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, cube))
    t = gl.arange(0, TOK, layout=tokens)
    i = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, cube)))
    j = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, cube)))
    i2 = gl.expand_dims(i, 0)
    at = 8 + 4 * gl.expand_dims(i2, 2) + gl.expand_dims(gl.expand_dims(j, 0), 1)
    t2 = gl.expand_dims(t, 1)
    t3 = gl.expand_dims(t2, 2)
    begin = partial_ptr + tile * (SLICES * RECORD)
    c_place = begin + at * TOK + t3
    p_place = begin + (4 + i2) * TOK + t2
    q_place = begin + SQUARES * TOK + t
    c = gl.zeros([TOK, 4, 4], gl.float32, layout=cube)
    p = gl.zeros([TOK, 4], gl.float32, layout=gl.SliceLayout(2, cube))
    squares = gl.zeros([TOK], gl.float32, layout=tokens)
    for _ in range(0, SLICES, AT_ONCE):
        for k in gl.static_range(AT_ONCE):
            c += gl.load(c_place + k * RECORD, cache_modifier=".cg")
            p += gl.load(p_place + k * RECORD, cache_modifier=".cg")
            squares += gl.load(q_place + k * RECORD, cache_modifier=".cg")
        c_place += AT_ONCE * RECORD
        p_place += AT_ONCE * RECORD
        q_place += AT_ONCE * RECORD
    r = gl.expand_dims(gl.rsqrt(squares / (4 * d) + rms_eps), 1)
    t2 += tile * TOK
    t3 += tile * TOK
    p = p * r * gl.load(scale_ptr + 1) + gl.load(base_ptr + 4 + i2)
    gl.store(post_ptr + t2 * 4 + i2, 2.0 / (1.0 + gl.exp(-p)), mask=(t2 < n_tokens) & (i2 >= 0))
    c = c * gl.expand_dims(r, 2) * gl.load(scale_ptr + 2) + gl.load(base_ptr + at)
    c = gl.exp(c - gl.expand_dims(gl.max(c, 2), 2))
    c = c / gl.expand_dims(gl.sum(c, 2), 2) + hc_eps
    c = _normed(c, 1, hc_eps)
    for _ in range(ITERS - 1):
        c = _normed(c, 2, hc_eps)
        c = _normed(c, 1, hc_eps)
    gl.store(comb_ptr + t3 * 16 + (at - 8), c, mask=(t3 < n_tokens) & (at >= 8))
