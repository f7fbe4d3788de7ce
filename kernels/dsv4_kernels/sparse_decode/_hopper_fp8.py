"""The Hopper kernel on the fp8 layout: its producer decodes e4m3 to bf16 (Gluon).

The consumers and the ring of decoded stages are those of ``dsv4_kernels.sparse_decode._hopper``. The producer takes a
stage from a buffer of raw bytes that ``cp.async`` fills a stage ahead, and asks for the next one before it decodes: six
of seven tiles of codes, the scales and the rope values. The seventh tile, for which shared memory has no room, is asked
for at the same time and waits in registers; so do the row numbers, one stage further ahead.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.sparse_decode._hopper import DIM, HALF, HEADS, KEYS, _consumer, _item

TILE = gl.constexpr(64)
NOPE = gl.constexpr(448)
SCALES = gl.constexpr(16)  # bytes of a row that hold its scales, each twice, and two more

_PAIR = """
cvt.rn.f16x2.e4m3x2 both, {codes};
mov.b32 {{lower, upper}}, both;
cvt.f32.f16 x, lower;
cvt.f32.f16 y, upper;
cvt.rn.bf16x2.f32 both, y, x;
mul.rn.bf16x2 {to}, both, {scale};
"""
_CONVERT = gl.constexpr(
    "{.reg .b16 first, second, lower, upper; .reg .b32 both; .reg .f32 x, y;\nmov.b32 {first, second}, $2;"
    + _PAIR.format(codes="first", to="$0", scale="$3")
    + _PAIR.format(codes="second", to="$1", scale="$4")
    + "}"
)
"""PTX: four codes as two pairs of bf16; scales are powers of two, so the product is exact."""


@gluon.jit
def _decode(code, exponent):
    """Values of ``code [n, TILE]`` with scales ``exponent [n, 1]`` as bf16."""
    scale = (exponent.to(gl.int16) << 7).to(gl.bfloat16, bitcast=True).broadcast_to(code.shape)
    return gl.inline_asm_elementwise(_CONVERT, "=&r,=&r,r,r,r", [code, scale], dtype=gl.bfloat16, is_pure=True, pack=4)


@gluon.jit
def _rows(indices, at, last, ROWS: gl.constexpr, layout: gl.constexpr):
    """Rows of the ``ROWS`` keys from ``at`` on; -1: none."""
    key = at + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    return gl.load(indices + key, mask=key < last, other=-1)


@gluon.jit
def _pointers(row, pointer, stride, columns):
    """Pointers to ``columns [1, n]`` of these rows, to those of row 0 where there is none, and which are to be read."""
    base = pointer + gl.where(row >= 0, row, 0).to(gl.int64) * stride
    return base[:, None] + columns, (row >= 0)[:, None] & (columns >= 0)


@gluon.jit
def _ask_left(row, pool_ptr, rope_ptr, pool_stride, rope_stride, left, rope, scales):
    """Begin to fetch scales, rope values and tiles 0 to 3 of these rows, zeros where there is none."""
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    words: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    own = gl.convert_layout(row, gl.SliceLayout(1, words), assert_trivial=True)
    at, mask = _pointers(own, pool_ptr, pool_stride, gl.arange(0, SCALES, layout=gl.SliceLayout(0, words))[None, :])
    async_copy.async_copy_global_to_shared(scales, at + NOPE, mask=mask)
    at, mask = _pointers(row, rope_ptr, rope_stride, gl.arange(0, TILE, layout=gl.SliceLayout(0, bytes_))[None, :])
    async_copy.async_copy_global_to_shared(rope, at, mask=mask)
    at, mask = _pointers(row, pool_ptr, pool_stride, gl.arange(0, 4 * TILE, layout=gl.SliceLayout(0, bytes_))[None, :])
    async_copy.async_copy_global_to_shared(left, at, mask=mask)


@gluon.jit
def _ask_right(row, pool_ptr, pool_stride, right):
    """Begin to fetch tiles 4 and 5 of these rows, zeros where there is none, and return tile 6."""
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    at, mask = _pointers(row, pool_ptr, pool_stride, gl.arange(0, 2 * TILE, layout=gl.SliceLayout(0, bytes_))[None, :])
    async_copy.async_copy_global_to_shared(right, at + 4 * TILE, mask=mask)
    async_copy.commit_group()
    at, mask = _pointers(row, pool_ptr, pool_stride, gl.arange(0, TILE, layout=gl.SliceLayout(0, bytes_))[None, :])
    return gl.load(at + 6 * TILE, mask=mask, other=0)


@gluon.jit
def _put(code, scales, kv, tile: gl.constexpr):
    """Decode the codes of one tile into the stage."""
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    exponent = scales.slice(2 * tile, 1, dim=1).load(bytes_)
    kv.slice(tile * TILE, TILE, dim=1).store(_decode(code, exponent))


@gluon.jit
def _fp8_producer(
    part: gl.constexpr, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h,
    pool_stride, rope_stride, q_smem, kv_smem, lefts, rights, ropes, scales, q_full, q_empty, full, empty,
    H: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Fill rows ``part * ROWS`` to ``(part + 1) * ROWS`` of every stage; part 0 fetches Q too."""
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, copy))
    r = gl.arange(0, KEYS, layout=gl.SliceLayout(1, copy))
    left, right, rope = lefts.index(part), rights.index(part), ropes.index(part)
    count = 0
    q_count = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, _, head, begin, _, _, first, last, stages = _item(item, splits, indptr, indptr, H, False)
        if stages > 0:
            at, end = begin + first + part * ROWS, begin + last
            row = _rows(indices, at, end, ROWS, bytes_)
            async_copy.wait_group(0)
            _ask_left(
                row, pool_ptr, rope_ptr, pool_stride, rope_stride, left, rope, scales.index(2 * part + (count & 1))
            )
            c6 = _ask_right(row, pool_ptr, pool_stride, right)
            row = _rows(indices, at + KEYS, end, ROWS, bytes_)
            if part == 0:
                mbarrier.wait(q_empty, (q_count & 1) ^ 1)
                q_row = q_ptr + token.to(gl.int64) * q_stride_t + (head + r) * q_stride_h
                async_copy.async_copy_global_to_shared(
                    q_smem.index(0), q_row[:, None] + d[None, :], mask=(head + r < H)[:, None] & (d >= 0)[None, :]
                )
                async_copy.mbarrier_arrive(q_full, increment_count=False)
                q_count += 1
            for j in range(stages):
                stage = count % STAGES
                kv = kv_smem.index(stage).slice(part * ROWS, ROWS, dim=0)
                scale = scales.index(2 * part + (count & 1))
                mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
                async_copy.wait_group(0)
                kv.slice(NOPE, TILE, dim=1).store(rope.load(bytes_))
                c0 = left.slice(0 * TILE, TILE, dim=1).load(bytes_)
                c1 = left.slice(1 * TILE, TILE, dim=1).load(bytes_)
                c2 = left.slice(2 * TILE, TILE, dim=1).load(bytes_)
                c3 = left.slice(3 * TILE, TILE, dim=1).load(bytes_)
                _ask_left(
                    row, pool_ptr, rope_ptr, pool_stride, rope_stride, left, rope,
                    scales.index(2 * part + (count & 1 ^ 1)),
                )  # fmt: skip
                _put(c0, scale, kv, 0)
                _put(c1, scale, kv, 1)
                _put(c2, scale, kv, 2)
                _put(c3, scale, kv, 3)
                c4 = right.slice(0 * TILE, TILE, dim=1).load(bytes_)
                c5 = right.slice(1 * TILE, TILE, dim=1).load(bytes_)
                _put(c6, scale, kv, 6)
                c6 = _ask_right(row, pool_ptr, pool_stride, right)
                row = _rows(indices, at + (j + 2) * KEYS, end, ROWS, bytes_)
                _put(c4, scale, kv, 4)
                _put(c5, scale, kv, 5)
                fence_async_shared()
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
    halves: gl.constexpr = gl.SwizzledSharedLayout(64, 1, 2, [1, 0])  # 8 lanes read 64 bytes of each of two rows
    q_smem = gl.allocate_shared_memory(dtype, [1, HEADS, DIM], tile)
    kv_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], tile)
    left = gl.allocate_shared_memory(gl.uint8, [1, KEYS, 4 * TILE], halves)
    right = gl.allocate_shared_memory(gl.uint8, [1, KEYS, 2 * TILE], halves)
    rope = gl.allocate_shared_memory(dtype, [1, KEYS, TILE], gl.SwizzledSharedLayout(8, 1, 2, [1, 0]))
    scales = gl.allocate_shared_memory(gl.uint8, [2, KEYS, SCALES], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (
                _consumer,
                (
                    0, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                    HALF,
                ),
            ),
            (
                _consumer,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                    HALF,
                ),
            ),
            (
                _fp8_producer,
                (
                    0, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, left, right, rope, scales, q_full, q_empty, full, empty, H, STAGES,
                    KEYS,
                ),
            ),
        ],
        [4, 4],
        [200, 112],
    )  # fmt: skip
