"""Parts of ``_once.py`` where a sublayer's output is spread over the streams before they are collapsed (Gluon)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from dsv4_kernels.mhc_pre_post._once_parts import (
    DIMS,
    FOUR_WARPS,
    PART,
    RECORD,
    ROWS,
    SQUARES,
    STREAMS,
    TOK,
    TOKENS,
    _collapse_tile,
    _flat,
    _four,
    _four_of,
    _mixes_of_tile,
    _of_token,
    _pre_sums,
    _pre_weights,
    _rounded,
    _until,
)

POST = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2]], [[0, 0], [0, 0], [0, 0], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [16, 4]
    )
)  # fmt: skip
COMB = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8]], [[0, 0], [0, 0], [0, 0], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [16, 16]
    )
)  # fmt: skip


@gluon.jit
def _load(descs, rings, tile, col, stage, full):
    """Ask for a tile's streams, for what is spread over them, and how."""
    bar = full.index(stage)
    mbarrier.expect(bar, 5 * TOK * DIMS * 2 + 20 * TOK * 4)
    tma.async_copy_global_to_shared(descs[0], [0, tile * TOK, col], bar, rings[0].index(stage))
    tma.async_copy_global_to_shared(descs[1], [tile * TOK, col], bar, rings[1].index(stage))
    tma.async_copy_global_to_shared(descs[2], [tile * TOK, 0], bar, rings[2].index(stage))
    tma.async_copy_global_to_shared(descs[3], [tile * TOK, 0], bar, rings[3].index(stage))


@gluon.jit
def _columns(rows):
    """``[TOK, 4]`` with a row in a lane, as four columns ``[TOK, 1]``."""
    even, odd = gl.split(rows.reshape([TOK, 2, 2]))
    c0, c2 = gl.split(even)
    c1, c3 = gl.split(odd)
    return _of_token(c0)[:, None], _of_token(c1)[:, None], _of_token(c2)[:, None], _of_token(c3)[:, None]


@gluon.jit
def _joined(f0, f1, f2, f3):
    """The reverse of ``_four``."""
    pairs = gl.join(gl.join(f0, f1), gl.join(f2, f3)).permute((3, 2, 0, 1))
    return gl.convert_layout(pairs.reshape([4 * TOK, PART]), STREAMS, assert_trivial=True)


@gluon.jit
def _mixed(y, f0, f1, f2, f3, p, c0, c1, c2, c3, place, mask):
    """A part of one new stream, which is stored."""
    value = _rounded(p * y + (c0 * f0 + c1 * f1 + c2 * f2 + c3 * f3))
    gl.store(place, value, mask=mask)
    return value


@gluon.jit
def _squares_of(value):
    """Sums of eight squares, those of a lane."""
    wide = value.to(gl.float32)
    return gl.sum((wide * wide).reshape([TOK, PART // 8, 8]), 2)


@gluon.jit
def _spread(x_ptr, partial_ptr, n_tokens, tiles, rings, full, made, SLICES: gl.constexpr, STAGES: gl.constexpr):
    """New streams, in the place of the old ones in both memories, and their sums of squares."""
    groups = gl.num_programs(0) // SLICES
    slice_ = gl.program_id(0) % SLICES
    lane = gl.arange(0, TOK, layout=TOKENS)
    col = slice_ * DIMS + gl.arange(0, PART, layout=gl.SliceLayout(0, ROWS))
    d: gl.constexpr = SLICES * DIMS
    count = 0
    for tile in range(gl.program_id(0) // SLICES, tiles, groups):
        stage = count % STAGES
        token = tile * TOK + lane
        inside = token < n_tokens
        mask = inside[:, None] & (col >= 0)[None, :]
        mbarrier.wait(full.index(stage), count // STAGES & 1)
        p0, p1, p2, p3 = _columns(rings[2].index(stage).load(POST))
        even, odd = gl.split(rings[3].index(stage).load(COMB).reshape([TOK, 8, 2]))
        l0, l2 = gl.split(even.reshape([TOK, 4, 2]))
        l1, l3 = gl.split(odd.reshape([TOK, 4, 2]))
        c00, c10, c20, c30 = _columns(l0)
        c01, c11, c21, c31 = _columns(l1)
        c02, c12, c22, c32 = _columns(l2)
        c03, c13, c23, c33 = _columns(l3)
        place = x_ptr + token.to(gl.int64)[:, None] * (4 * d) + col[None, :]
        squares = _squares_of(gl.zeros([TOK, PART], gl.float32, layout=ROWS))
        for c in gl.static_range(DIMS // PART):
            part = _flat(rings[0], stage).slice(c * PART, PART, dim=1)
            y = rings[1].index(stage).slice(c * PART, PART, dim=1).load(ROWS).to(gl.float32)
            f0, f1, f2, f3 = _four(part.load(STREAMS).to(gl.float32))
            at = place + c * PART
            n0 = _mixed(y, f0, f1, f2, f3, p0, c00, c10, c20, c30, at, mask)
            n1 = _mixed(y, f0, f1, f2, f3, p1, c01, c11, c21, c31, at + d, mask)
            n2 = _mixed(y, f0, f1, f2, f3, p2, c02, c12, c22, c32, at + 2 * d, mask)
            n3 = _mixed(y, f0, f1, f2, f3, p3, c03, c13, c23, c33, at + 3 * d, mask)
            part.store(_joined(n0, n1, n2, n3))
            squares += _squares_of(n0) + _squares_of(n1) + _squares_of(n2) + _squares_of(n3)
        record = partial_ptr + (tile * SLICES + slice_) * RECORD
        gl.store(record + SQUARES * TOK + lane, _of_token(gl.sum(squares, 1)))
        fence_async_shared()
        mbarrier.arrive(made.index(stage), count=1)
        count = count + 1


@gluon.jit
def _weights(sums, scale, base, d: gl.constexpr, eps):
    w0, w1, w2, w3 = _pre_weights(sums, scale, base, d, eps[0], eps[1])
    return _of_token(w0), _of_token(w1), _of_token(w2), _of_token(w3)


@gluon.jit
def _load_and_collapse(
    descs, rings, sums, to, out_ptr, n_tokens, tiles, out_stride, eps, full, made,
    ITERS: gl.constexpr, SLICES: gl.constexpr, PAD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A tile is collapsed when the next one's sums are there, which then are on their way.

    A tile that has been collapsed makes room for one that is asked for. Programs of a group make ``post`` and ``comb``
    of a tile in turn.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, PAD // 8], [4, 8], [4, 1], [1, 0])
    groups = gl.num_programs(0) // SLICES
    first = gl.program_id(0) // SLICES
    slice_ = gl.program_id(0) % SLICES
    d: gl.constexpr = SLICES * DIMS
    partial_ptr, counter_ptr, base_ptr, scale_ptr = sums
    for k in gl.static_range(STAGES):
        if first + k * groups < tiles:
            _load(descs, rings, first + k * groups, slice_ * DIMS, k, full)
    scale = gl.load(scale_ptr)
    base = _four_of(base_ptr)
    last = first + (tiles - 1 - first) // groups * groups
    _until(counter_ptr + first, SLICES)
    parts = _pre_sums(partial_ptr, first, layout, SLICES, PAD)
    w0, w1, w2, w3 = _weights(parts, scale, base, d, eps)
    count = 0
    for tile in range(first, tiles, groups):
        stage = count % STAGES
        after = gl.minimum(tile + groups, last)
        mbarrier.wait(made.index(stage), count // STAGES & 1)
        _until(counter_ptr + after, SLICES)
        parts = _pre_sums(partial_ptr, after, layout, SLICES, PAD)
        _collapse_tile(w0, w1, w2, w3, out_ptr, n_tokens, tile, out_stride, rings[0], stage, SLICES)
        gl.thread_barrier()
        later = tile + STAGES * groups
        if later < tiles:
            _load(descs, rings, later, slice_ * DIMS, stage, full)
        w0, w1, w2, w3 = _weights(parts, scale, base, d, eps)
        if count % SLICES == slice_:
            _mixes_of_tile(
                partial_ptr, base_ptr, scale_ptr, to[0], to[1], n_tokens, tile, d, eps[0], eps[1], FOUR_WARPS, 4,
                SLICES, ITERS,
            )  # fmt: skip
        count = count + 1
