"""Hopper sibling of the sparse attention kernels: a gathering producer and two consumers per program (Gluon).

A persistent program takes items (token, split, block of 64 heads). Four producer warps gather the item's rows with
``cp.async`` into a ring of 64-row stages; rows come from the pool, and for prefill also from this forward's ``kv``.
Two warpgroups each score the whole stage (wgmma, heads on rows) and accumulate one half of the value dims. Scoring
twice costs a third more matrix work than sharing the scores would, and buys that the two warpgroups never wait for
each other: one multiplies while the other is in its softmax.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NEGATIVE = gl.constexpr(-3.0e38)
LOG2E = gl.constexpr(1.4426950408889634)
HEADS = gl.constexpr(64)
KEYS = gl.constexpr(64)
DIM = gl.constexpr(512)
HALF = gl.constexpr(256)


@gluon.jit
def _item(item, splits, prefix_indptr, extend_indptr, H: gl.constexpr, EXTEND: gl.constexpr):
    """Token, split, first head, bounds of the two lists, first key, number of keys and of stages."""
    BLOCKS: gl.constexpr = (H + HEADS - 1) // HEADS
    head = item % BLOCKS * HEADS
    split = item // BLOCKS % splits
    token = item // (BLOCKS * splits)
    begin = gl.load(prefix_indptr + token)
    prefix = gl.load(prefix_indptr + token + 1) - begin
    own_begin = 0
    length = prefix
    if EXTEND:
        own_begin = gl.load(extend_indptr + token)
        length = prefix + gl.load(extend_indptr + token + 1) - own_begin
    per_split = gl.cdiv(gl.cdiv(length, KEYS), splits) * KEYS
    first = split * per_split
    last = gl.minimum(first + per_split, length)
    stages = gl.maximum(gl.cdiv(last - first, KEYS), 0)
    return token, split, head, begin, prefix, own_begin, first, last, stages


@gluon.jit
def _row_numbers(prefix_indices, extend_indices, begin, prefix, own_begin, key, last, EXTEND: gl.constexpr):
    """Row of each key (-1: none), and whether it is a pool row."""
    in_pool = key < prefix
    row = gl.load(prefix_indices + begin + key, mask=in_pool & (key < last), other=-1)
    if EXTEND:
        own = gl.load(extend_indices + own_begin + key - prefix, mask=(key >= prefix) & (key < last), other=-1)
        row = gl.where(in_pool, row, own)
    return row, in_pool


@gluon.jit
def _producer(
    q_ptr, pool_ptr, kv_ptr, prefix_indices, prefix_indptr, extend_indices, extend_indptr, n_items, splits,
    q_stride_t, q_stride_h, pool_stride, kv_stride, q_smem, kv_smem, q_full, q_empty, full, empty,
    H: gl.constexpr, PARTS: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, copy))
    r = gl.arange(0, KEYS, layout=gl.SliceLayout(1, copy))
    count = 0
    q_count = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, _, head, begin, prefix, own_begin, first, last, stages = _item(
            item, splits, prefix_indptr, extend_indptr, H, EXTEND
        )
        if stages > 0:
            mbarrier.wait(q_empty, (q_count & 1) ^ 1)
            q_row = q_ptr + token.to(gl.int64) * q_stride_t + (head + r) * q_stride_h
            async_copy.async_copy_global_to_shared(
                q_smem.index(0), q_row[:, None] + d[None, :], mask=(head + r < H)[:, None] & (d >= 0)[None, :]
            )
            async_copy.mbarrier_arrive(q_full, increment_count=False)
            q_count += 1
            for j in range(stages):
                row, in_pool = _row_numbers(
                    prefix_indices, extend_indices, begin, prefix, own_begin, first + j * KEYS + r, last, EXTEND
                )
                ok = row >= 0
                offset = gl.where(ok, row, 0).to(gl.int64)
                base = pool_ptr + offset * pool_stride
                if EXTEND:
                    base = gl.where(in_pool, base, kv_ptr + offset * kv_stride)
                stage = count % STAGES
                mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
                async_copy.async_copy_global_to_shared(
                    kv_smem.index(stage), base[:, None] + d[None, :], mask=ok[:, None] & (d >= 0)[None, :]
                )
                async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
                count += 1


@gluon.jit
def _consumer(
    half: gl.constexpr, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indices, prefix_indptr, extend_indices,
    extend_indptr, n_items, splits, scale, out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty,
    H: gl.constexpr, PARTS: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout))
    scale_log2 = scale * LOG2E
    count = 0
    q_count = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, split, head, begin, prefix, own_begin, first, last, stages = _item(
            item, splits, prefix_indptr, extend_indptr, H, EXTEND
        )
        m = gl.full([HEADS], NEGATIVE, gl.float32, layout=rows)
        norm = gl.zeros([HEADS], gl.float32, layout=rows)
        acc = gl.zeros([HEADS, HALF], gl.float32, layout=o_layout)
        if stages > 0:
            mbarrier.wait(q_full, q_count & 1)
        for j in range(stages):
            row, _ = _row_numbers(
                prefix_indices, extend_indices, begin, prefix, own_begin, first + j * KEYS + key, last, EXTEND
            )
            ok = (row >= 0)[None, :]
            stage = count % STAGES
            kv = kv_smem.index(stage)
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            fence_async_shared()
            s = gl.zeros([HEADS, KEYS], gl.float32, layout=s_layout)
            q = q_smem.index(count >> 30)  # 0, in a way that keeps 32 matrix descriptors out of registers
            s = warpgroup_mma(q, kv.permute((1, 0)), s, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(0, deps=[s])
            if j == stages - 1:
                mbarrier.arrive(q_empty, count=1)
            s = gl.where(ok, s * scale_log2, NEGATIVE)
            m_new = gl.maximum(m, gl.max(s, 1))
            p = gl.where(ok, gl.exp2(s - m_new[:, None]), 0.0)
            alpha = gl.exp2(m - m_new)
            norm = norm * alpha + gl.sum(p, 1)
            m = m_new
            weights = gl.convert_layout(p.to(kv_smem.dtype), p_layout)
            acc = acc * gl.convert_layout(alpha, o_rows)[:, None]
            acc = warpgroup_mma(weights, kv.slice(half * HALF, HALF, dim=1), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(stage), count=1)
            count += 1
        if stages > 0:
            q_count += 1
        heads = head + gl.arange(0, HEADS, layout=o_rows)
        d = half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, o_layout))
        mask = (heads < H)[:, None] & (d >= 0)[None, :]
        m_o = gl.convert_layout(m, o_rows)
        l_o = gl.convert_layout(norm, o_rows)
        if not PARTS:
            sink = gl.load(sink_ptr + heads, mask=heads < H, other=0.0) * LOG2E
            top = gl.maximum(m_o, sink)
            alpha = gl.exp2(m_o - top)
            total = l_o * alpha + gl.exp2(sink - top)
            result = (acc * alpha[:, None] / total[:, None]).to(out_ptr.dtype.element_ty)
            target = out_ptr + token.to(gl.int64) * out_stride_t + heads[:, None] * out_stride_h + d[None, :]
            gl.store(target, result, mask=mask)
        else:
            part = token.to(gl.int64) * splits + split
            if stages > 0:
                gl.store(acc_ptr + part * (H * DIM) + heads[:, None] * DIM + d[None, :], acc, mask=mask)
            if half == 0:
                gl.store(stats_ptr + part * (2 * H) + heads, m_o, mask=heads < H)
                gl.store(stats_ptr + part * (2 * H) + H + heads, l_o, mask=heads < H)


@gluon.jit(do_not_specialize=["n_items", "splits"])
def hopper_attention_kernel(
    q_ptr, pool_ptr, kv_ptr, prefix_indices, prefix_indptr, extend_indices, extend_indptr, sink_ptr, out_ptr, acc_ptr,
    stats_ptr, n_items, splits, scale, q_stride_t, q_stride_h, pool_stride, kv_stride, out_stride_t, out_stride_h,
    H: gl.constexpr, PARTS: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """See the module; ``PARTS`` leaves partial results as ``_sparse_decode_kernel`` does."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_smem = gl.allocate_shared_memory(dtype, [1, HEADS, DIM], tile)
    kv_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], tile)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=128)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (
                _consumer,
                (
                    0, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indices, prefix_indptr, extend_indices,
                    extend_indptr, n_items, splits, scale, out_stride_t, out_stride_h, q_smem, kv_smem, q_full,
                    q_empty, full, empty, H, PARTS, EXTEND, STAGES,
                ),
            ),
            (
                _consumer,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indices, prefix_indptr, extend_indices,
                    extend_indptr, n_items, splits, scale, out_stride_t, out_stride_h, q_smem, kv_smem, q_full,
                    q_empty, full, empty, H, PARTS, EXTEND, STAGES,
                ),
            ),
            (
                _producer,
                (
                    q_ptr, pool_ptr, kv_ptr, prefix_indices, prefix_indptr, extend_indices, extend_indptr, n_items,
                    splits, q_stride_t, q_stride_h, pool_stride, kv_stride, q_smem, kv_smem, q_full, q_empty, full,
                    empty, H, PARTS, EXTEND, STAGES,
                ),
            ),
        ],
        [4, 4],
        [216, 72],
    )  # fmt: skip


TILE = gl.constexpr(64)
NOPE = gl.constexpr(448)


@gluon.jit
def _codes(base, ok, tile: gl.constexpr):
    """Codes ``[KEYS, TILE]`` and scales ``[KEYS]`` of one tile; zeros where a row is missing."""
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    d = gl.arange(0, TILE, layout=gl.SliceLayout(0, bytes_))
    code = gl.load(base[:, None] + tile * TILE + d[None, :], mask=ok[:, None] & (d >= 0)[None, :], other=0)
    return code, gl.load(base + NOPE + 2 * tile, mask=ok, other=127)


@gluon.jit
def _put(code, exponent, kv, tile: gl.constexpr):
    """Decode one tile into the stage."""
    scale = (exponent.to(gl.int32) << 23).to(gl.float32, bitcast=True)
    value = code.to(gl.float8e4nv, bitcast=True).to(gl.float32) * scale[:, None]
    kv.slice(tile * TILE, TILE, dim=1).store(value.to(kv.dtype))


@gluon.jit
def _fp8_producer(
    q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride, rope_stride,
    q_smem, kv_smem, q_full, q_empty, full, empty, H: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    bytes_: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, copy))
    rope_d = gl.arange(0, TILE, layout=gl.SliceLayout(0, copy))
    r = gl.arange(0, KEYS, layout=gl.SliceLayout(1, copy))
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(1, bytes_))
    count = 0
    q_count = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, _, head, begin, _, _, first, last, stages = _item(item, splits, indptr, indptr, H, False)
        if stages > 0:
            mbarrier.wait(q_empty, (q_count & 1) ^ 1)
            q_row = q_ptr + token.to(gl.int64) * q_stride_t + (head + r) * q_stride_h
            async_copy.async_copy_global_to_shared(
                q_smem.index(0), q_row[:, None] + d[None, :], mask=(head + r < H)[:, None] & (d >= 0)[None, :]
            )
            async_copy.mbarrier_arrive(q_full, increment_count=False)
            q_count += 1
            for j in range(stages):
                at = first + j * KEYS
                row = gl.load(indices + begin + at + key, mask=at + key < last, other=-1)
                ok = row >= 0
                base = pool_ptr + gl.where(ok, row, 0).to(gl.int64) * pool_stride
                c0, e0 = _codes(base, ok, 0)
                c1, e1 = _codes(base, ok, 1)
                c2, e2 = _codes(base, ok, 2)
                c3, e3 = _codes(base, ok, 3)
                c4, e4 = _codes(base, ok, 4)
                c5, e5 = _codes(base, ok, 5)
                c6, e6 = _codes(base, ok, 6)
                own = gl.load(indices + begin + at + r, mask=at + r < last, other=-1)
                rope_row = rope_ptr + gl.where(own >= 0, own, 0).to(gl.int64) * rope_stride
                stage = count % STAGES
                kv = kv_smem.index(stage)
                mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
                async_copy.async_copy_global_to_shared(
                    kv.slice(NOPE, TILE, dim=1), rope_row[:, None] + rope_d[None, :],
                    mask=(own >= 0)[:, None] & (rope_d >= 0)[None, :],
                )  # fmt: skip
                async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
                _put(c0, e0, kv, 0)
                _put(c1, e1, kv, 1)
                _put(c2, e2, kv, 2)
                _put(c3, e3, kv, 3)
                _put(c4, e4, kv, 4)
                _put(c5, e5, kv, 5)
                _put(c6, e6, kv, 6)
                fence_async_shared()
                mbarrier.arrive(full.index(stage), count=1)
                count += 1


@gluon.jit(do_not_specialize=["n_items", "splits"])
def hopper_fp8_kernel(
    q_ptr, pool_ptr, rope_ptr, indices, indptr, sink_ptr, out_ptr, acc_ptr, stats_ptr, n_items, splits, scale,
    q_stride_t, q_stride_h, pool_stride, rope_stride, out_stride_t, out_stride_h,
    H: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """As :func:`hopper_attention_kernel` without ``kv``, on the fp8 layout: the producer decodes e4m3 to bf16.

    It holds a stage's codes in registers while the stage before is still in use, so one gather is always in flight;
    the 64 rope values of a row go to shared memory by ``cp.async``.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_smem = gl.allocate_shared_memory(dtype, [1, HEADS, DIM], tile)
    kv_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], tile)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=129)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (
                _consumer,
                (
                    0, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                ),
            ),
            (
                _consumer,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, indices, indptr, indices, indptr, n_items, splits, scale,
                    out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty, H, PARTS, False, STAGES,
                ),
            ),
            (
                _fp8_producer,
                (
                    q_ptr, pool_ptr, rope_ptr, indices, indptr, n_items, splits, q_stride_t, q_stride_h, pool_stride,
                    rope_stride, q_smem, kv_smem, q_full, q_empty, full, empty, H, STAGES,
                ),
            ),
        ],
        [4, 4],
        [192, 120],
    )  # fmt: skip
