"""Parts of ``_once.py``: layouts, products by warps, and the records that programs of a group exchange (Gluon)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

TOK = gl.constexpr(16)  # tokens of a tile
DIMS = gl.constexpr(256)  # columns of each stream in a slice
RECORD = gl.constexpr(9 * 64)  # words of a record: nine of four words for each token
ASKED = gl.constexpr(2)  # of a program's first tiles on their way at once: fn and records wait behind them
LAST = gl.constexpr(8)  # of a group's tiles: their mixes are hurried
HEAD = gl.constexpr(32)  # words before the first record: the last launch's number, and programs that are done

ROWS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 64], [0, 128]], [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], [[4, 0], [8, 0]], [],
        [16, 256],
    )
)  # fmt: skip
TOKENS = gl.constexpr(gl.SliceLayout(1, ROWS))
PAIRS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 32], [0, 64]], [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [16, 128]
    )
)  # fmt: skip
WIDE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]], [[0, 8], [0, 16], [4, 0], [1, 0], [2, 0]], [[0, 32], [0, 64], [0, 128]], [],
        [16, 256],
    )
)  # fmt: skip
MIXED = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[0, 32], [0, 64], [0, 128]], [], [8, 256]
    )
)  # fmt: skip
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [8, 1, 1], [1, 16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, PRODUCT, 2))
ADDED = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0]], [], [], [8, 16, 8],
    )
)  # fmt: skip
EIGHT = gl.constexpr(
    gl.DistributedLinearLayout(
        [], [[0, 0, 1], [0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0]], [[1, 0, 0], [2, 0, 0], [4, 0, 0]], [], [8, 16, 2]
    )
)  # fmt: skip
HALVES = gl.constexpr(gl.DistributedLinearLayout([], [[0, 1], [1, 0], [2, 0], [4, 0], [8, 0]], [], [], [16, 2]))
OF_TOKEN = gl.constexpr(gl.SliceLayout(1, HALVES))


@gluon.jit
def _rounded(value):
    """float32 to bf16, two at once: neighbours in a lane are neighbours of a row."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [value], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _right(part):
    """``[8 mixes, DIMS]`` as right operands of eight warps, 32 columns each."""
    split = part.reshape([8, 8, 4, 2, 2, 2]).permute((1, 3, 4, 2, 5, 0))
    return gl.convert_layout(split.reshape([8, 32, 8]), RIGHT, assert_trivial=True)


@gluon.jit
def _fn_fragment(value):
    """High and low bf16 parts of eight mixes.

    The high part is rounded by integers: conversions one by one would take microseconds of a launch.
    """
    bits = (value.to(gl.int32, bitcast=True) + 0x8000) & -65536
    low = _rounded(value - bits.to(gl.float32, bitcast=True))
    high = (bits >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
    return _right(high), _right(low)


@gluon.jit
def _fn_loaded(place, d: gl.constexpr):
    """Of one stream mixes 0 to 7, 8 to 15, 16 to 23."""
    return gl.load(place), gl.load(place + 32 * d), gl.load(place + 64 * d)


@gluon.jit
def _fn_stream(loaded):
    h0, l0 = _fn_fragment(loaded[0])
    h1, l1 = _fn_fragment(loaded[1])
    h2, l2 = _fn_fragment(loaded[2])
    return h0, l0, h1, l1, h2, l2


@gluon.jit
def _fn_streams(fn_ptr, d: gl.constexpr):
    """Of the four streams; two are on their way at once, which registers suffice for."""
    place = _fn_places(fn_ptr + gl.program_id(0) % (d // DIMS) * DIMS, d)
    loaded0 = _fn_loaded(place, d)
    loaded1 = _fn_loaded(place + d, d)
    fn0 = _fn_stream(loaded0)
    loaded2 = _fn_loaded(place + 2 * d, d)
    fn1 = _fn_stream(loaded1)
    loaded3 = _fn_loaded(place + 3 * d, d)
    return fn0, fn1, _fn_stream(loaded2), _fn_stream(loaded3)


@gluon.jit
def _fn_places(fn_ptr, d: gl.constexpr):
    """Of the first stream's columns of the first eight mixes, ``[8, DIMS]``."""
    mix = gl.arange(0, 8, layout=gl.SliceLayout(1, MIXED))
    return fn_ptr + mix[:, None] * (4 * d) + gl.arange(0, DIMS, layout=gl.SliceLayout(0, MIXED))[None, :]


@gluon.jit
def _left(x):
    """``[TOK, DIMS]`` as left operands of eight warps; their rows are the tokens in the order of the lanes."""
    split = x.reshape([2, 2, 4, 8, 4, 2, 2, 2]).permute((3, 0, 2, 1, 5, 6, 4, 7))
    return gl.convert_layout(split.reshape([8, 16, 32]), LEFT, assert_trivial=True)


@gluon.jit
def _none():
    return gl.zeros([8, 16, 8], gl.float32, layout=PRODUCT)


@gluon.jit
def _multiplied(x, fn, sums):
    """``sums`` and the products of one stream."""
    a = _left(x)
    return (
        mma_v2(a, fn[0], mma_v2(a, fn[1], sums[0])), mma_v2(a, fn[2], mma_v2(a, fn[3], sums[1])),
        mma_v2(a, fn[4], mma_v2(a, fn[5], sums[2])),
    )  # fmt: skip


@gluon.jit
def _by_token(acc):
    """The rows in the tokens' order again."""
    return acc.reshape([8, 2, 4, 2, 8]).permute((0, 1, 3, 2, 4)).reshape([8, 16, 8])


@gluon.jit
def _leave_sums(m0, m1, m2, squares, parts, bar, count):
    """Sums of eight warps ``[8, TOK, 8]`` and those of squares ``[TOK, 8]`` to one that adds them up."""
    part0, part1, part2, square_part, part_empty = parts
    mbarrier.wait(part_empty, (count & 1) ^ 1)
    part0.store(m0)
    part1.store(m1)
    part2.store(m2)
    square_part.store(squares)
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _added_up(parts):
    """What eight warps have left: three times four of ``[TOK, 2]``, and ``[TOK, 2]`` of squares, the same twice."""
    part0, part1, part2, square_part, part_empty = parts
    p = _quarters(gl.sum(part0.load(ADDED), 0))
    q = _quarters(gl.sum(part1.load(ADDED), 0))
    r = _quarters(gl.sum(part2.load(ADDED), 0))
    squares = gl.sum(square_part.load(gl.BlockedLayout([1, 8], [32, 1], [1, 1], [1, 0])), 1)
    squares = gl.convert_layout(squares, OF_TOKEN)[:, None] + gl.zeros([16, 2], gl.float32, layout=HALVES)
    mbarrier.arrive(part_empty, count=1)
    return p, q, r, squares


@gluon.jit
def _squares(x):
    """``[TOK, 8]``, by token and warp."""
    wide = x.to(gl.float32)
    return (wide * wide).reshape([16, 8, 32])


@gluon.jit
def _stream(ring, stage):
    """A stage's ``[TOK, DIMS]`` of one stream."""
    return ring.index(stage).reshape([TOK, DIMS])


@gluon.jit
def _quarters(x):
    """``[TOK, 8]`` with four neighbours a lane, as four ``[TOK, 2]``."""
    even, odd = gl.split(x.reshape([16, 2, 2, 2]))
    x0, x2 = gl.split(even)
    x1, x3 = gl.split(odd)
    return (
        gl.convert_layout(x0, HALVES, assert_trivial=True), gl.convert_layout(x1, HALVES, assert_trivial=True),
        gl.convert_layout(x2, HALVES, assert_trivial=True), gl.convert_layout(x3, HALVES, assert_trivial=True),
    )  # fmt: skip


@gluon.jit
def _put(place, a, b, c, tag):
    """Three numbers and the launch's number, 16 bytes at once."""
    gl.inline_asm_elementwise(
        "{ .reg .b128 t; .reg .b64 l, h; mov.b64 l, {$2, $3}; mov.b64 h, {$4, $5}; mov.b128 t, {l, h}; "
        "st.relaxed.gpu.global.b128 [$1], t; mov.b32 $0, 0; }",
        "=r,l,r,r,r,r",
        [place.to(gl.int64), a.to(gl.int32, bitcast=True), b.to(gl.int32, bitcast=True), c.to(gl.int32, bitcast=True),
         tag],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _get(place):
    """What ``_put`` left there."""
    return gl.inline_asm_elementwise(
        "{ .reg .b128 t; .reg .b64 l, h; ld.relaxed.gpu.global.b128 t, [$4]; mov.b128 {l, h}, t; "
        "mov.b64 {$0, $1}, l; mov.b64 {$2, $3}, h; }",
        "=r,=r,=r,=r,l", [place], dtype=(gl.float32, gl.float32, gl.float32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _patient(place, tag):
    """Until ``place`` holds the launch's number; looks now and then."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; again: ld.relaxed.gpu.global.b32 $0, [$1]; setp.eq.b32 p, $0, $2; @p bra there; "
        "nanosleep.u32 300; bra again; there: }",
        "=&r,l,r", [place.to(gl.int64), tag], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _number(record_ptr):
    """The launch's number, from before the first record."""
    return gl.load(record_ptr - HEAD, volatile=True) + 1


@gluon.jit
def _insisted(place, tag, a, b, c, seen):
    """What ``_get`` gave, or if it was too early, what it gives in the end."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b128 t; .reg .b64 l, h; setp.eq.b32 p, $3, $9; @p bra there; "
        "again: ld.relaxed.gpu.global.b128 t, [$8]; mov.b128 {l, h}, t; mov.b64 {$0, $1}, l; mov.b64 {$2, $3}, h; "
        "setp.ne.b32 p, $3, $9; @p bra again; there: }",
        "=&r,=&r,=&r,=&r,0,1,2,3,l,r",
        [a.to(gl.int32, bitcast=True), b.to(gl.int32, bitcast=True), c.to(gl.int32, bitcast=True), seen,
         place.to(gl.int64), tag],
        dtype=(gl.float32, gl.float32, gl.float32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _publisher(record_ptr, tiles, parts, part_full, published, begun, SLICES: gl.constexpr, SLOTS: gl.constexpr):
    """The program's records, a tile after the other.

    A record: for half 0 and 1 of the mixes (pre and rows 0, 2 of comb; post and rows 1, 3) four of three numbers, with
    the squares among half 0's, and a ninth of the one number of half 0 that is left.
    """
    groups = gl.num_programs(0) // SLICES
    mbarrier.wait(begun, 0)
    tag = _number(record_ptr)
    lane = gl.arange(0, 16, layout=OF_TOKEN)
    half = gl.arange(0, 2, layout=gl.SliceLayout(0, HALVES))
    tags = gl.full([16, 2], tag, gl.int32, layout=HALVES)
    of_lane = lane[:, None] * 4 + half[None, :] * 64
    count = 0
    for tile in range(gl.program_id(0) // SLICES, tiles, groups):
        mbarrier.wait(part_full, count & 1)
        p, q, r, squares = _added_up(parts)
        record = record_ptr + (tile * SLICES + gl.program_id(0) % SLICES) * RECORD
        _put(record + of_lane, p[0], p[1], p[2], tags)
        _put(record + of_lane + 128, p[3], gl.where(half[None, :] == 0, squares, r[3]), q[0], tags)
        _put(record + of_lane + 256, q[1], q[2], q[3], tags)
        _put(record + of_lane + 384, r[0], r[1], r[2], tags)
        rest = gl.sum(gl.where(half[None, :] == 0, r[3], 0.0), 1)
        _put(record + 512 + lane * 4, rest, rest, rest, gl.full([16], tag, gl.int32, layout=OF_TOKEN))
        mbarrier.arrive(published.index(count % SLOTS), count=1)
        count = count + 1


@gluon.jit
def _all_of(there, N: gl.constexpr):
    """Whether all of ``N`` are true."""
    return gl.min(there.to(gl.int32).reshape([N]), 0)


@gluon.jit
def _awaited(place, tag, N: gl.constexpr):
    """The first two of four numbers of each of ``N`` records' halves 0, when they have come."""
    a, b, c, t = _get(place)
    e, f, _g, u = _get(place + 128)
    while _all_of((t == tag) & (u == tag), N) == 0:
        a, b, c, t = _get(place)
        e, f, _g, u = _get(place + 128)
    return a, b, c, e, f


@gluon.jit
def _weight(sums, r, scale, base, hc_eps):
    return 1.0 / (1.0 + gl.exp(-(sums * r * scale + base))) + hc_eps


@gluon.jit
def _over_lanes_own(x, AT_ONCE: gl.constexpr):
    """Sums over the slices that a lane holds, ``[2, TOK]``."""
    return gl.sum(x.reshape([2, AT_ONCE // 2, 16]), 1)


@gluon.jit
def _reducer(which: gl.constexpr, given, AT_ONCE: gl.constexpr, SLICES: gl.constexpr, SLOTS: gl.constexpr):
    """Weights of the collapse, of every other tile (``which``: even or odd ones): two warps hide each other's waits.

    ``n_slices``: as ``SLICES``, but not known to the compiler, which would unroll the loop over them and spill.
    """
    record_ptr, base_ptr, scale_ptr, tiles, n_slices, eps, w_smem, published, ready, begun = given
    layout: gl.constexpr = gl.BlockedLayout([AT_ONCE // 2, 1], [2, 16], [1, 1], [1, 0])
    groups = gl.num_programs(0) // SLICES
    scale = gl.load(scale_ptr)
    b0, b1, b2, b3 = gl.load(base_ptr), gl.load(base_ptr + 1), gl.load(base_ptr + 2), gl.load(base_ptr + 3)
    token = gl.arange(0, 16, layout=gl.SliceLayout(0, layout))[None, :]
    s = gl.arange(0, AT_ONCE, layout=gl.SliceLayout(1, layout))[:, None]
    zero = _over_lanes_own(gl.zeros([AT_ONCE, 16], gl.float32, layout=layout), AT_ONCE)
    mbarrier.wait(begun, 0)
    tag = _number(record_ptr)
    count = which
    for tile in range(gl.program_id(0) // SLICES + which * groups, tiles, 2 * groups):
        slot = count % SLOTS
        m0, m1, m2, m3, squares = zero, zero, zero, zero, zero
        mbarrier.wait(published.index(slot), count // SLOTS & 1)
        for k in range(0, n_slices, AT_ONCE):
            place = record_ptr + tile * (SLICES * RECORD) + gl.minimum(s + k, SLICES - 1) * RECORD + token * 4
            a, b, c, e, f = _awaited(place, tag, 16 * AT_ONCE)
            if SLICES % AT_ONCE != 0:
                there = (s + k < SLICES) & (token >= 0)
                a, b, c = gl.where(there, a, 0.0), gl.where(there, b, 0.0), gl.where(there, c, 0.0)
                e, f = gl.where(there, e, 0.0), gl.where(there, f, 0.0)
            m0 += _over_lanes_own(a, AT_ONCE)
            m1 += _over_lanes_own(b, AT_ONCE)
            m2 += _over_lanes_own(c, AT_ONCE)
            m3 += _over_lanes_own(e, AT_ONCE)
            squares += _over_lanes_own(f, AT_ONCE)
        r = gl.rsqrt(gl.sum(squares, 0) / (4 * SLICES * DIMS) + eps[0])
        w_smem.index(slot * 4).store(_weight(gl.sum(m0, 0), r, scale, b0, eps[1]))
        w_smem.index(slot * 4 + 1).store(_weight(gl.sum(m1, 0), r, scale, b1, eps[1]))
        w_smem.index(slot * 4 + 2).store(_weight(gl.sum(m2, 0), r, scale, b2, eps[1]))
        w_smem.index(slot * 4 + 3).store(_weight(gl.sum(m3, 0), r, scale, b3, eps[1]))
        mbarrier.arrive(ready.index(slot), count=1)
        count = count + 2


@gluon.jit
def _pairs(ring, stage):
    """A stage's ``[TOK, DIMS]`` of one stream, two neighbours a word: as such they stay in few registers."""
    words: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    return _stream(ring, stage)._reinterpret(gl.int32, [TOK, DIMS // 2], words).load(PAIRS)


@gluon.jit
def _summed(f0, f1, f2, f3, w0, w1, w2, w3):
    return (
        w0 * f0.to(gl.float32, bitcast=True) + w1 * f1.to(gl.float32, bitcast=True)
        + w2 * f2.to(gl.float32, bitcast=True) + w3 * f3.to(gl.float32, bitcast=True)
    )  # fmt: skip


@gluon.jit
def _store_collapsed(f0, f1, f2, f3, w_smem, slot, out_ptr, n_tokens, tile, out_stride, SLICES: gl.constexpr):
    """``out`` of a tile, this program's columns, from pairs."""
    tokens: gl.constexpr = gl.SliceLayout(1, PAIRS)
    w0, w1 = w_smem.index(slot * 4).load(tokens)[:, None], w_smem.index(slot * 4 + 1).load(tokens)[:, None]
    w2, w3 = w_smem.index(slot * 4 + 2).load(tokens)[:, None], w_smem.index(slot * 4 + 3).load(tokens)[:, None]
    even = _summed(f0 << 16, f1 << 16, f2 << 16, f3 << 16, w0, w1, w2, w3)
    odd = _summed(f0 & -65536, f1 & -65536, f2 & -65536, f3 & -65536, w0, w1, w2, w3)
    y = gl.convert_layout(gl.join(even, odd).reshape([TOK, DIMS]), ROWS, assert_trivial=True)
    col = gl.program_id(0) % SLICES * DIMS + gl.arange(0, DIMS, layout=gl.SliceLayout(0, ROWS))
    token = tile * TOK + gl.arange(0, TOK, layout=TOKENS)
    place = out_ptr + token.to(gl.int64)[:, None] * out_stride + col[None, :]
    gl.store(place, _rounded(y), mask=(token < n_tokens)[:, None] & (col >= 0)[None, :])
