"""Parts of ``_once.py``: the mixes of the next spread, by one warp a tile (Gluon)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsv4_kernels.mhc_pre_post._once_parts import (
    DIMS,
    EIGHT,
    HALVES,
    LAST,
    OF_TOKEN,
    RECORD,
    TOK,
    _added_up,
    _all_of,
    _get,
    _insisted,
    _leave_sums,
    _number,
    _patient,
)


@gluon.jit
def _inverse(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _over_halves(x):
    """Sums of both halves, in both."""
    return gl.sum(x, 1)[:, None]


@gluon.jit
def _rows(a, b, c, d, eps):
    inverse = _inverse((a + b) + (c + d) + eps)
    return a * inverse, b * inverse, c * inverse, d * inverse


@gluon.jit
def _column(q, r, eps):
    inverse = _inverse(_over_halves(q + r) + eps)
    return q * inverse, r * inverse


@gluon.jit
def _softmax(a, b, c, d, eps):
    top = gl.maximum(gl.maximum(a, b), gl.maximum(c, d))
    a, b, c, d = gl.exp(a - top), gl.exp(b - top), gl.exp(c - top), gl.exp(d - top)
    inverse = 1.0 / ((a + b) + (c + d))
    return a * inverse + eps, b * inverse + eps, c * inverse + eps, d * inverse + eps


@gluon.jit
def _logits(a, b, c, d, r, scale, base_ptr):
    return (
        a * r * scale + gl.load(base_ptr), b * r * scale + gl.load(base_ptr + 1), c * r * scale + gl.load(base_ptr + 2),
        d * r * scale + gl.load(base_ptr + 3),
    )  # fmt: skip


@gluon.jit
def _store_four(place, a, b, c, d, mask):
    gl.store(place, a, mask=mask)
    gl.store(place + 1, b, mask=mask)
    gl.store(place + 2, c, mask=mask)
    gl.store(place + 3, d, mask=mask)


@gluon.jit
def _finish(p, q, r, squares, given, tile, SLICES: gl.constexpr, ITERS: gl.constexpr):
    """``post`` and ``comb`` of a tile. A lane has half the mixes of a token: post or nothing, and two rows of comb."""
    base_ptr, scale_ptr, to, n_tokens, eps = given[1], given[2], given[3], given[4], given[7]
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, HALVES))[None, :]
    norm = gl.rsqrt(squares / (4 * SLICES * DIMS) + eps[0])
    token = tile * TOK + gl.arange(0, 16, layout=OF_TOKEN)[:, None]
    inside = (token < n_tokens) & (half >= 0)
    p0, p1, p2, p3 = _logits(p[0], p[1], p[2], p[3], norm, gl.load(scale_ptr + 1), base_ptr + 4)
    _store_four(
        to[0] + token * 4 + 0 * half, 2.0 / (1.0 + gl.exp(-p0)), 2.0 / (1.0 + gl.exp(-p1)),
        2.0 / (1.0 + gl.exp(-p2)), 2.0 / (1.0 + gl.exp(-p3)), inside & (half == 1),
    )  # fmt: skip
    scale = gl.load(scale_ptr + 2)
    q0, q1, q2, q3 = _logits(q[0], q[1], q[2], q[3], norm, scale, base_ptr + 8 + 4 * half)
    r0, r1, r2, r3 = _logits(r[0], r[1], r[2], r[3], norm, scale, base_ptr + 16 + 4 * half)
    q0, q1, q2, q3 = _softmax(q0, q1, q2, q3, eps[1])
    r0, r1, r2, r3 = _softmax(r0, r1, r2, r3, eps[1])
    for at in range(ITERS):
        if at > 0:
            q0, q1, q2, q3 = _rows(q0, q1, q2, q3, eps[1])
            r0, r1, r2, r3 = _rows(r0, r1, r2, r3, eps[1])
        q0, r0 = _column(q0, r0, eps[1])
        q1, r1 = _column(q1, r1, eps[1])
        q2, r2 = _column(q2, r2, eps[1])
        q3, r3 = _column(q3, r3, eps[1])
    place = to[1] + token * 16 + 4 * half
    _store_four(place, q0, q1, q2, q3, inside)
    _store_four(place + 8, r0, r1, r2, r3, inside)


@gluon.jit
def _gathered(given, tag, tile, AT_ONCE: gl.constexpr, SLICES: gl.constexpr):
    """A tile's sums over the slices, by one warp."""
    record_ptr, n_slices = given[0], given[6]
    lane = gl.arange(0, 16, layout=OF_TOKEN)
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, HALVES))[None, :]
    begin = record_ptr + tile * (SLICES * RECORD)
    zero = gl.zeros([16, 2], gl.float32, layout=HALVES)
    p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
    r0, r1, r2, r3 = zero, zero, zero, zero
    rest = gl.zeros([16], gl.float32, layout=OF_TOKEN)
    complete = 0
    while complete == 0:
        p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
        r0, r1, r2, r3 = zero, zero, zero, zero
        rest = gl.zeros([16], gl.float32, layout=OF_TOKEN)
        bad = gl.zeros([16, 2], gl.int32, layout=HALVES)
        place = begin + (lane[:, None] * 4 + half * 64)
        last = begin + (512 + lane * 4)
        for _ in range(0, n_slices, AT_ONCE):
            for k in gl.static_range(AT_ONCE):
                a, b, c, t = _get(place + k * RECORD)
                p0, p1, p2, bad = p0 + a, p1 + b, p2 + c, bad | (t - tag)
                a, b, c, t = _get(place + k * RECORD + 128)
                p3, r3, q0, bad = p3 + a, r3 + b, q0 + c, bad | (t - tag)
                a, b, c, t = _get(place + k * RECORD + 256)
                q1, q2, q3, bad = q1 + a, q2 + b, q3 + c, bad | (t - tag)
                a, b, c, t = _get(place + k * RECORD + 384)
                r0, r1, r2, bad = r0 + a, r1 + b, r2 + c, bad | (t - tag)
                e, _f, _g, u = _get(last + k * RECORD)
                rest, bad = rest + e, bad | (u - tag)[:, None]
            place += AT_ONCE * RECORD
            last += AT_ONCE * RECORD
        complete = _all_of(bad == 0, 32)
    squares = _over_halves(gl.where(half == 0, r3, 0.0)) + zero
    return (p0, p1, p2, p3), (q0, q1, q2, q3), (r0, r1, r2, gl.where(half == 0, rest[:, None], r3)), squares


@gluon.jit
def _four_together(a, b, c, d):
    """Of ``[8, TOK, 2]`` as ``_quarters`` takes them apart."""
    return gl.join(gl.join(a, c), gl.join(b, d)).reshape([8, 16, 8])


@gluon.jit
def _gather_last(given, tile, parts, bar, count, SLICES: gl.constexpr):
    """A tile's sums over the slices, by eight warps, to one that adds them up."""
    record_ptr = given[0]
    s = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, EIGHT)))
    lane = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, EIGHT)))
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(0, EIGHT)))
    s2 = gl.expand_dims(s, 1)
    lane2 = gl.expand_dims(lane, 0)
    half3 = gl.expand_dims(gl.expand_dims(half, 0), 0)
    tag = _number(record_ptr)
    begin = record_ptr + tile * (SLICES * RECORD)
    zero = gl.zeros([8, 16, 2], gl.float32, layout=EIGHT)
    p0, p1, p2, p3, q0, q1, q2, q3 = zero, zero, zero, zero, zero, zero, zero, zero
    r0, r1, r2, r3 = zero, zero, zero, zero
    for k in gl.static_range(0, SLICES, 8):
        there = (s2 + k < SLICES) & (lane2 >= 0)
        last = begin + gl.minimum(s2 + k, SLICES - 1) * RECORD + lane2 * 4
        place = gl.expand_dims(last, 2) + half3 * 64
        there = gl.expand_dims(there, 2) & (half3 >= 0)
        a0, a1, a2, t0 = _get(place)
        b0, b1, b2, t1 = _get(place + 128)
        c0, c1, c2, t2 = _get(place + 256)
        d0, d1, d2, t3 = _get(place + 384)
        e0, e1, e2, t4 = _get(last + 512)
        a0, a1, a2, _t0 = _insisted(place, tag, a0, a1, a2, t0)
        b0, b1, b2, _t1 = _insisted(place + 128, tag, b0, b1, b2, t1)
        c0, c1, c2, _t2 = _insisted(place + 256, tag, c0, c1, c2, t2)
        d0, d1, d2, _t3 = _insisted(place + 384, tag, d0, d1, d2, t3)
        e0, _e1, _e2, _t4 = _insisted(last + 512, tag, e0, e1, e2, t4)
        p0, p1, p2 = p0 + gl.where(there, a0, 0.0), p1 + gl.where(there, a1, 0.0), p2 + gl.where(there, a2, 0.0)
        p3, q0 = p3 + gl.where(there, b0, 0.0), q0 + gl.where(there, b2, 0.0)
        q1, q2, q3 = q1 + gl.where(there, c0, 0.0), q2 + gl.where(there, c1, 0.0), q3 + gl.where(there, c2, 0.0)
        r0, r1, r2 = r0 + gl.where(there, d0, 0.0), r1 + gl.where(there, d1, 0.0), r2 + gl.where(there, d2, 0.0)
        # to be told apart below: the squares of half 0, and the last number of half 1
        squares_part = gl.sum(gl.where(there & (half3 == 0), b1, 0.0), 2)
        r3 += gl.where(there, gl.where(half3 == 0, gl.expand_dims(e0, 2), b1), 0.0)
        if k == 0:
            squares = squares_part
        else:
            squares += squares_part
    _leave_sums(
        _four_together(p0, p1, p2, p3), _four_together(q0, q1, q2, q3), _four_together(r0, r1, r2, r3),
        squares.permute((1, 0)), parts, bar, count,
    )  # fmt: skip


@gluon.jit
def _last_turn(tiles, SLICES: gl.constexpr):
    """Which of the group's last tiles is this program's, or -1; by their count, and how many there are."""
    groups = gl.num_programs(0) // SLICES
    many = (tiles - gl.program_id(0) // SLICES + groups - 1) // groups
    mine = many - 1 - (many - 1 - gl.program_id(0) % SLICES + SLICES) % SLICES
    return gl.where((mine >= 0) & (mine >= many - LAST), mine, -1), many


@gluon.jit
def _mixes(given, begun, parts, last_full, AT_ONCE: gl.constexpr, SLICES: gl.constexpr, ITERS: gl.constexpr):
    """``post`` and ``comb``: one program of a group a tile, in turn; sums of the last tiles by the products' warps."""
    record_ptr, tiles = given[0], given[5]
    groups = gl.num_programs(0) // SLICES
    group = gl.program_id(0) // SLICES
    last, many = _last_turn(tiles, SLICES)
    mbarrier.wait(begun, 0)
    tag = _number(record_ptr)
    for at in range(gl.program_id(0) % SLICES, many - LAST, SLICES):
        tile = group + at * groups
        _patient(record_ptr + (tile * SLICES + gl.program_id(0) % SLICES) * RECORD + 515, tag)
        p, q, r, squares = _gathered(given, tag, tile, AT_ONCE, SLICES)
        _finish(p, q, r, squares, given, tile, SLICES, ITERS)
    if last >= 0:
        mbarrier.wait(last_full, 0)
        p, q, r, squares = _added_up(parts)
        _finish(p, q, r, squares, given, group + last * groups, SLICES, ITERS)
