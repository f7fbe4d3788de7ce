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


def _exchange() -> str:
    """PTX: transpose the four words of each of two rows that the four lanes of a quad hold."""
    lines = [".reg .pred p; .reg .b32 lane, t, w<8>; mov.u32 lane, %laneid;"]
    lines += [f"mov.b32 w{i}, ${8 + i};" for i in range(8)]
    for bit in (1, 2):
        lines.append(f"and.b32 t, lane, {bit}; setp.ne.u32 p, t, 0;")
        for group in (g for g in range(4) if not g & bit):
            for row in (0, 1):
                a, b = f"w{2 * group + row}", f"w{2 * (group + bit) + row}"
                lines.append(f"selp.b32 t, {a}, {b}, p; shfl.sync.bfly.b32 t, t, {bit}, 31, -1;")
                lines.append(f"selp.b32 {a}, t, {a}, p; selp.b32 {b}, {b}, t, p;")
    lines += [f"mov.b32 ${i}, w{i};" for i in range(8)]
    return "{\n" + "\n".join(lines) + "\n}"


_EXCHANGE = gl.constexpr(_exchange())
_EXCHANGE_OPERANDS = gl.constexpr(",".join(["=r"] * 8 + ["r"] * 8))


@gluon.jit
def _runs_of_eight(x):
    """``x [HEADS, HALF]`` of 16-bit values as the matrix units leave it, with eight neighbours of a row in a lane.

    The lanes of a quad exchange words, so that lane ``q`` has pair ``g`` of eight where it had pair ``q`` of eight
    ``g``; the rest is names.
    """
    x = gl.inline_asm_elementwise(_EXCHANGE, _EXCHANGE_OPERANDS, [x], dtype=x.dtype, is_pure=False, pack=16)
    x = x.reshape([HEADS, HALF // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4))
    return x.reshape([HEADS, HALF])


@gluon.jit
def _put_result(acc, m, norm, half: gl.constexpr, token, head, sink_ptr, out_ptr, stride_t, stride_h, H: gl.constexpr):
    """Add the sink, divide, and store: each lane 16 bytes, for stores of pairs cost more than all else of a short list.

    ``acc [HEADS, HALF]``, ``m`` and ``norm [HEADS]`` in slices of its layout.
    """
    heads = head + gl.arange(0, HEADS, layout=m.type.layout)
    sink = gl.load(sink_ptr + heads, mask=heads < H, other=0.0) * LOG2E
    top = gl.maximum(m, sink)
    alpha = gl.exp2(m - top)
    share = alpha / (norm * alpha + gl.exp2(sink - top))
    eights: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64], [0, 128]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [HEADS, HALF],
    )  # fmt: skip
    result = _runs_of_eight((acc * share[:, None]).to(out_ptr.dtype.element_ty))
    result = gl.convert_layout(result, eights, assert_trivial=True)
    place = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, eights))[:, None]
    d = half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, eights))[None, :]
    target = out_ptr + token.to(gl.int64) * stride_t + place * stride_h + d
    gl.store(target, result, mask=(place < H) & (d >= 0))


@gluon.jit
def _put_part(
    acc, m, norm, half: gl.constexpr, part, stages, head, acc_ptr, stats_ptr, layout: gl.constexpr, H: gl.constexpr
):
    """Leave the partial result number ``part`` as ``_sparse_decode_kernel`` does."""
    heads = head + gl.arange(0, HEADS, layout=m.type.layout)
    d = half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
    if stages > 0:
        target = acc_ptr + part * (H * DIM) + heads[:, None] * DIM + d[None, :]
        gl.store(target, acc, mask=(heads < H)[:, None] & (d >= 0)[None, :])
    if half == 0:
        gl.store(stats_ptr + part * (2 * H) + heads, m, mask=heads < H)
        gl.store(stats_ptr + part * (2 * H) + H + heads, norm, mask=heads < H)


@gluon.jit
def _consumer(
    half: gl.constexpr, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indices, prefix_indptr, extend_indices,
    extend_indptr, n_items, splits, scale, out_stride_t, out_stride_h, q_smem, kv_smem, q_full, q_empty, full, empty,
    H: gl.constexpr, PARTS: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
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
        m_o, norm_o = gl.convert_layout(m, o_rows), gl.convert_layout(norm, o_rows)
        if not PARTS:
            _put_result(acc, m_o, norm_o, half, token, head, sink_ptr, out_ptr, out_stride_t, out_stride_h, H)
        else:
            part = token.to(gl.int64) * splits + split
            _put_part(acc, m_o, norm_o, half, part, stages, head, acc_ptr, stats_ptr, o_layout, H)


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
                    q_empty, full, empty, H, PARTS, EXTEND, STAGES, HALF,
                ),
            ),
            (
                _consumer,
                (
                    1, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indices, prefix_indptr, extend_indices,
                    extend_indptr, n_items, splits, scale, out_stride_t, out_stride_h, q_smem, kv_smem, q_full,
                    q_empty, full, empty, H, PARTS, EXTEND, STAGES, HALF,
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
        [224, 64],
    )  # fmt: skip
