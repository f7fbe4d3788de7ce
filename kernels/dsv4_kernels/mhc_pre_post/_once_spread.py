"""Parts of ``_once.py`` where a sublayer's output is spread over the streams before they are collapsed (Gluon)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from dsv4_kernels.mhc_pre_post._once_parts import (
    DIMS,
    TOK,
    WIDE,
    _by_token,
    _fn_streams,
    _leave_sums,
    _multiplied,
    _none,
    _rounded,
    _squares,
    _stream,
)

OF_ROW = gl.constexpr(gl.SliceLayout(1, WIDE))
POST = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 0], [0, 0], [4, 0], [1, 0], [2, 0]], [[0, 0], [0, 0], [0, 0]], [], [16, 4]
    )
)  # fmt: skip
COMB = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[0, 0], [0, 0], [4, 0], [1, 0], [2, 0]], [[0, 0], [0, 0], [0, 0]],
        [], [16, 16],
    )
)  # fmt: skip


@gluon.jit
def _of_row(values):
    return gl.convert_layout(values, OF_ROW, assert_trivial=True)[:, None]


@gluon.jit
def _columns(rows):
    """``[TOK, 4]`` with a row in a lane, as four columns ``[TOK, 1]``."""
    even, odd = gl.split(rows.reshape([TOK, 2, 2]))
    c0, c2 = gl.split(even)
    c1, c3 = gl.split(odd)
    return _of_row(c0), _of_row(c1), _of_row(c2), _of_row(c3)


@gluon.jit
def _all_weights(post, comb):
    """For each new stream what it takes of the sublayer's output and of the four streams, by token."""
    p0, p1, p2, p3 = _columns(post.load(POST))
    even, odd = gl.split(comb.load(COMB).reshape([TOK, 8, 2]))
    l0, l2 = gl.split(even.reshape([TOK, 4, 2]))
    l1, l3 = gl.split(odd.reshape([TOK, 4, 2]))
    c0, c1, c2, c3 = _columns(l0), _columns(l1), _columns(l2), _columns(l3)
    return (
        (p0, c0[0], c0[1], c0[2], c0[3]), (p1, c1[0], c1[1], c1[2], c1[3]), (p2, c2[0], c2[1], c2[2], c2[3]),
        (p3, c3[0], c3[1], c3[2], c3[3]),
    )  # fmt: skip


@gluon.jit
def _mixed(y, f0, f1, f2, f3, weights):
    """One new stream."""
    p, c0, c1, c2, c3 = weights
    return _rounded(p * y + (c0 * f0 + c1 * f1 + c2 * f2 + c3 * f3))


@gluon.jit
def _spread(fn_ptr, tiles, rings, full, made, parts, part_full, SLICES: gl.constexpr, STAGES: gl.constexpr):
    """New streams in the place of the old ones, their products and sums of squares, 32 columns of each a warp."""
    groups = gl.num_programs(0) // SLICES
    fn0, fn1, fn2, fn3 = _fn_streams(fn_ptr, SLICES * DIMS)
    count = 0
    for _ in range(gl.program_id(0) // SLICES, tiles, groups):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), count // STAGES & 1)
        w0, w1, w2, w3 = _all_weights(rings[5].index(stage), rings[6].index(stage))
        y = rings[4].index(stage).load(WIDE).to(gl.float32)
        f0 = _stream(rings[0], stage).load(WIDE).to(gl.float32)
        f1 = _stream(rings[1], stage).load(WIDE).to(gl.float32)
        f2 = _stream(rings[2], stage).load(WIDE).to(gl.float32)
        f3 = _stream(rings[3], stage).load(WIDE).to(gl.float32)
        sums = (_none(), _none(), _none())
        n0 = _mixed(y, f0, f1, f2, f3, w0)
        _stream(rings[0], stage).store(n0)
        sums = _multiplied(n0, fn0, sums)
        squares = _squares(n0)
        n1 = _mixed(y, f0, f1, f2, f3, w1)
        _stream(rings[1], stage).store(n1)
        sums = _multiplied(n1, fn1, sums)
        squares += _squares(n1)
        n2 = _mixed(y, f0, f1, f2, f3, w2)
        _stream(rings[2], stage).store(n2)
        sums = _multiplied(n2, fn2, sums)
        squares += _squares(n2)
        n3 = _mixed(y, f0, f1, f2, f3, w3)
        _stream(rings[3], stage).store(n3)
        fence_async_shared()
        mbarrier.arrive(made.index(stage), count=1)
        sums = _multiplied(n3, fn3, sums)
        squares += _squares(n3)
        m0, m1, m2 = _by_token(sums[0]), _by_token(sums[1]), _by_token(sums[2])
        _leave_sums(m0, m1, m2, gl.sum(squares, 2), parts, part_full, count)
        count = count + 1
