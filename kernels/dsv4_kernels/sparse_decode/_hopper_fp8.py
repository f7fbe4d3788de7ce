"""The Hopper kernel on the fp8 layout: two producers that decode e4m3 to bf16, a scorer, two accumulators (Gluon).

See ``_hopper_roles.py`` for the latter three. Each producer fills half of the rows of every stage: it reads codes from
a buffer of raw bytes that ``cp.async`` fills a stage ahead. Three pairs of tiles are each asked for as soon as their
buffer has been read, the scales with the first. The seventh tile, for which shared memory has no room, waits in
registers; so do the rows' numbers, one stage further ahead. Rope values are bf16 already: they are copied right into
the stage.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.sparse_decode._hopper import DIM, HEADS, KEYS, _item
from dsv4_kernels.sparse_decode._hopper_roles import _accumulator, _scorer

TILE = gl.constexpr(64)
WORDS = gl.constexpr(16)  # of four codes, in a tile
PRODUCERS = gl.constexpr(2)
ROWS = gl.constexpr(32)  # of a stage, for each producer
NOPE = gl.constexpr(448)
SCALES = gl.constexpr(16)  # bytes of a row that hold its scales, each twice, and two more
WORDS_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))

_PAIR = """
cvt.rn.f16x2.e4m3x2 both, {codes};
mov.b32 {{lower, upper}}, both;
cvt.f32.f16 x, lower;
cvt.f32.f16 y, upper;
cvt.rn.bf16x2.f32 both, y, x;
mul.rn.bf16x2 {to}, both, $3;
"""
_CONVERT = gl.constexpr(
    "{.reg .b16 first, second, lower, upper; .reg .b32 both; .reg .f32 x, y;\nmov.b32 {first, second}, $2;"
    + _PAIR.format(codes="first", to="$0")
    + _PAIR.format(codes="second", to="$1")
    + "}"
)
"""PTX: four codes as two pairs of bf16; scales are powers of two, so the product is exact."""


@gluon.jit
def _decode(codes, exponent):
    """Words of four codes each, with their scales: two words of two bf16 each, in one dim more."""
    scale = ((exponent.to(gl.int32) & 0xFF) * 0x00800080).broadcast_to(codes.shape)
    lower, upper = gl.inline_asm_elementwise(
        _CONVERT, "=&r,=&r,r,r", [codes, scale], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    return gl.join(lower, upper)


@gluon.jit
def _rows(indices, at, last):
    """Rows of the ``ROWS`` keys from ``at`` on; -1: none."""
    key = at + gl.arange(0, ROWS, layout=gl.SliceLayout(1, WORDS_LAYOUT))
    return gl.load(indices + key, mask=key < last, other=-1)


@gluon.jit
def _bases(row, pointer, stride):
    """Where these rows begin; for one that is not there, where row 0 does."""
    return pointer + gl.where(row >= 0, row, 0).to(gl.int64) * stride


@gluon.jit
def _ask(row, base, raw, pair: gl.constexpr):
    """Begin to fetch two tiles of these rows, zeros where there is none."""
    column = gl.arange(0, 2 * WORDS, layout=gl.SliceLayout(0, WORDS_LAYOUT))[None, :]
    at = base.to(gl.pointer_type(gl.int32), bitcast=True)[:, None] + column + pair * 2 * WORDS
    async_copy.async_copy_global_to_shared(raw, at, mask=(row >= 0)[:, None] & (column >= 0))
    async_copy.commit_group()


@gluon.jit
def _ask_scales(row, base, scales):
    """Begin to fetch the scales of these rows, zeros where there is none; with the next pair."""
    column = gl.arange(0, SCALES, layout=gl.SliceLayout(0, WORDS_LAYOUT))[None, :]
    mask = (row >= 0)[:, None] & (column >= 0)
    async_copy.async_copy_global_to_shared(scales, base[:, None] + column + NOPE, mask=mask)


@gluon.jit
def _seventh(row, base):
    """Codes of the seventh tile of these rows."""
    column = gl.arange(0, WORDS, layout=gl.SliceLayout(0, WORDS_LAYOUT))[None, :]
    at = base.to(gl.pointer_type(gl.int32), bitcast=True)[:, None] + column + 6 * WORDS
    return gl.load(at, mask=(row >= 0)[:, None] & (column >= 0), other=0)


@gluon.jit
def _copy_rope(row, rope_ptr, stride, kv):
    """Begin to copy the rope values of these rows into the stage, zeros where there is none."""
    pairs: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    own = gl.convert_layout(row, gl.SliceLayout(1, pairs), assert_trivial=True)
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, pairs))[None, :]
    at = _bases(own, rope_ptr, stride)[:, None] + column
    async_copy.async_copy_global_to_shared(kv.slice(NOPE, TILE, dim=1), at, mask=(own >= 0)[:, None] & (column >= 0))


@gluon.jit
def _prefetch_rope(row, rope_ptr, stride):
    """Have the L2 cache fetch the rope values of these rows."""
    at = _bases(row, rope_ptr, stride)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _put_pair(codes, scales, kv, pair: gl.constexpr):
    """Decode the codes ``[ROWS, 2 * WORDS]`` of two tiles into the stage, whose words are ``kv``."""
    tiles: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [4, 1, 1], [2, 1, 0])
    exponent = scales.slice(2 * pair, 2, dim=1).load(gl.SliceLayout(2, tiles))
    two = gl.convert_layout(codes.reshape([ROWS, 2, WORDS]), tiles, assert_trivial=True)
    kv.slice(pair * 4 * WORDS, 4 * WORDS, dim=1).store(_decode(two, exponent[:, :, None]).reshape([ROWS, 4 * WORDS]))


@gluon.jit
def _put_seventh(codes, scales, kv):
    """Decode the codes of the seventh tile into the stage."""
    exponent = scales.slice(6, 1, dim=1).load(WORDS_LAYOUT)
    kv.slice(12 * WORDS, 2 * WORDS, dim=1).store(_decode(codes, exponent).reshape([ROWS, 2 * WORDS]))


@gluon.jit
def _producer(
    part: gl.constexpr, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h,
    pool_stride, rope_stride, q_smem, kv_smem, raws0, raws1, raws2, scales, q_full, q_empty, full, empty,
    H: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fill rows ``part * ROWS`` to ``(part + 1) * ROWS`` of every stage; part 0 fetches Q too."""
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    as_words: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, copy))
    r = gl.arange(0, KEYS, layout=gl.SliceLayout(1, copy))
    kv_words = kv_smem._reinterpret(gl.int32, [STAGES, KEYS, DIM // 2], as_words)
    pairs = scales._reinterpret(gl.int16, [2 * PRODUCERS, ROWS, SCALES // 2], PLAIN)
    raw0, raw1, raw2 = raws0.index(part), raws1.index(part), raws2.index(part)
    count = 0
    q_count = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, _, head, begin, _, _, first, last, stages = _item(item, splits, indptr, indptr, H, False)
        if stages > 0:
            at, end = begin + first + part * ROWS, begin + last
            here = _rows(indices, at, end)
            async_copy.wait_group(0)
            base = _bases(here, pool_ptr, pool_stride)
            _ask_scales(here, base, scales.index(2 * part + (count & 1)))
            _ask(here, base, raw0, 0)
            _ask(here, base, raw1, 1)
            _ask(here, base, raw2, 2)
            c6 = _seventh(here, base)
            _prefetch_rope(here, rope_ptr, rope_stride)
            at += KEYS
            then = _rows(indices, at, end)
            if part == 0:
                mbarrier.wait(q_empty, (q_count & 1) ^ 1)
                q_row = q_ptr + token.to(gl.int64) * q_stride_t + (head + r) * q_stride_h
                async_copy.async_copy_global_to_shared(
                    q_smem.index(0), q_row[:, None] + d[None, :], mask=(head + r < H)[:, None] & (d >= 0)[None, :]
                )
                async_copy.mbarrier_arrive(q_full, increment_count=False)
                q_count += 1
            for _ in range(stages):
                stage = count % STAGES
                kv = kv_words.index(stage).slice(part * ROWS, ROWS, dim=0)
                scale = pairs.index(2 * part + (count & 1))
                async_copy.wait_group(2)
                codes = raw0.load(WORDS_LAYOUT)
                base = _bases(then, pool_ptr, pool_stride)
                _ask_scales(then, base, scales.index(2 * part + (count & 1 ^ 1)))
                _ask(then, base, raw0, 0)
                mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
                _copy_rope(here, rope_ptr, rope_stride, kv_smem.index(stage).slice(part * ROWS, ROWS, dim=0))
                async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
                _prefetch_rope(then, rope_ptr, rope_stride)
                _put_pair(codes, scale, kv, 0)
                async_copy.wait_group(2)
                codes = raw1.load(WORDS_LAYOUT)
                _ask(then, base, raw1, 1)
                _put_pair(codes, scale, kv, 1)
                _put_seventh(c6, scale, kv)
                c6 = _seventh(then, base)
                async_copy.wait_group(2)
                codes = raw2.load(WORDS_LAYOUT)
                _ask(then, base, raw2, 2)
                here = then
                at += KEYS
                then = _rows(indices, at, end)
                _put_pair(codes, scale, kv, 2)
                mbarrier.arrive(full.index(stage), count=1)
                count += 1


@gluon.jit(do_not_specialize=["n_items", "splits"])
def hopper_fp8_kernel(
    q_ptr, pool_ptr, rope_ptr, indices, indptr, sink_ptr, out_ptr, acc_ptr, stats_ptr, n_items, splits, scale,
    q_stride_t, q_stride_h, pool_stride, rope_stride, out_stride_t, out_stride_h,
    H: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """As ``hopper_attention_kernel`` without ``kv``, on the two pools of the fp8 layout; see the module."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    halves: gl.constexpr = gl.SwizzledSharedLayout(16, 1, 2, [1, 0])  # 8 lanes read 64 bytes of each of two rows
    q_smem = gl.allocate_shared_memory(dtype, [1, HEADS, DIM], tile)
    kv_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], tile)
    p_smem = gl.allocate_shared_memory(dtype, [HEADS, KEYS], tile)
    notes = gl.allocate_shared_memory(gl.float32, [2, HEADS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    raws0 = gl.allocate_shared_memory(gl.int32, [PRODUCERS, ROWS, 2 * WORDS], halves)
    raws1 = gl.allocate_shared_memory(gl.int32, [PRODUCERS, ROWS, 2 * WORDS], halves)
    raws2 = gl.allocate_shared_memory(gl.int32, [PRODUCERS, ROWS, 2 * WORDS], halves)
    scales = gl.allocate_shared_memory(gl.uint8, [2 * PRODUCERS, ROWS, SCALES], PLAIN)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    a_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    p_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=1)
    mbarrier.init(a_full, count=1)
    mbarrier.init(p_full, count=1)
    mbarrier.init(p_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=129 * PRODUCERS)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (
                _accumulator,
                (
                    0, sink_ptr, out_ptr, acc_ptr, stats_ptr, indptr, indptr, n_items, splits, out_stride_t,
                    out_stride_h, kv_smem, p_smem, notes, full, empty, a_full, p_full, p_empty, H, PARTS, False, STAGES,
                ),
            ),
            (
                _accumulator,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, indptr, indptr, n_items, splits, out_stride_t,
                    out_stride_h, kv_smem, p_smem, notes, full, empty, a_full, p_full, p_empty, H, PARTS, False, STAGES,
                ),
            ),
            (
                _scorer,
                (
                    indices, indptr, indices, indptr, n_items, splits, scale, q_smem, kv_smem, p_smem, notes, q_full,
                    q_empty, full, a_full, p_full, p_empty, H, False, STAGES,
                ),
            ),
            (
                _producer,
                (
                    0, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, raws0, raws1, raws2, scales, q_full, q_empty, full, empty, H, STAGES,
                ),
            ),
            (
                _producer,
                (
                    1, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, raws0, raws1, raws2, scales, q_full, q_empty, full, empty, H, STAGES,
                ),
            ),
        ],
        [4, 4, 4, 4],
        [160, 64, 48, 48],
    )  # fmt: skip
