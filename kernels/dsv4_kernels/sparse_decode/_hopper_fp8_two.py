"""The Hopper kernel on the fp8 layout with two producers, each of which decodes half of the rows of a stage (Gluon).

Four more warps hide the latency of decoding, which is what bounds the kernel with one producer; the consumers give up
registers for them. Short lists do not pay for starting them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.sparse_decode._hopper import DIM, HEADS, KEYS, _consumer
from dsv4_kernels.sparse_decode._hopper_fp8 import SCALES, TILE, _fp8_producer

ROWS = gl.constexpr(32)  # of a stage, for each producer
COLUMNS = gl.constexpr(128)  # of one product with the values: with 16 warps the assembler takes no 256


@gluon.jit(do_not_specialize=["n_items", "splits"])
def hopper_fp8_two_kernel(
    q_ptr, pool_ptr, rope_ptr, indices, indptr, sink_ptr, out_ptr, acc_ptr, stats_ptr, n_items, splits, scale,
    q_stride_t, q_stride_h, pool_stride, rope_stride, out_stride_t, out_stride_h,
    H: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """As ``hopper_fp8_kernel``."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    halves: gl.constexpr = gl.SwizzledSharedLayout(64, 1, 2, [1, 0])  # 8 lanes read 64 bytes of each of two rows
    q_smem = gl.allocate_shared_memory(dtype, [1, HEADS, DIM], tile)
    kv_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], tile)
    left = gl.allocate_shared_memory(gl.uint8, [2, ROWS, 4 * TILE], halves)
    right = gl.allocate_shared_memory(gl.uint8, [2, ROWS, 2 * TILE], halves)
    rope = gl.allocate_shared_memory(dtype, [2, ROWS, TILE], gl.SwizzledSharedLayout(8, 1, 2, [1, 0]))
    scales = gl.allocate_shared_memory(gl.uint8, [4, ROWS, SCALES], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (
                _consumer,
                (
                    0, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                    COLUMNS,
                ),
            ),
            (
                _consumer,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                    COLUMNS,
                ),
            ),
            (
                _fp8_producer,
                (
                    0, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, left, right, rope, scales, q_full, q_empty, full, empty, H, STAGES,
                    ROWS,
                ),
            ),
            (
                _fp8_producer,
                (
                    1, q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, left, right, rope, scales, q_full, q_empty, full, empty, H, STAGES,
                    ROWS,
                ),
            ),
        ],
        [4, 4, 4],
        [192, 64, 64],
    )  # fmt: skip
